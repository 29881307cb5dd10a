-- Skips sends of one batch with their reasons, and keeps the batch's counters and state. Answers how many were skipped.
-- $1 tenant, $2 first and $3 last id of the batch, $4 month, $5 send ids, $6 reasons. Served by the primary key of sends.
with verdicts as (
    select * from unnest($5::uuid[], $6::text[]) as v (id, reason)
), before as (
    select s.id, s.state, v.reason
    from sends s
    join verdicts v on v.id = s.id
    where s.tenant_id = $1 and s.id between $2 and $3 and s.month = $4 and s.state in ('queued', 'deferred')
    order by s.id
    for update of s
), changed as (
    update sends s
    set state = 'skipped', reason = b.reason, decided_at = now(), next_attempt_at = null
    from before b
    where s.tenant_id = $1 and s.id between $2 and $3 and s.month = $4 and s.id = b.id
    returning b.state as was
), counted as (
    select count(*) filter (where was = 'queued')::integer as queued, count(*) filter (where was = 'deferred')::integer as deferred
    from changed
), batch as (
    update batches b
    set queued = b.queued - n.queued,
        deferred = b.deferred - n.deferred,
        skipped = b.skipped + n.queued + n.deferred,
        state = case when b.queued + b.claimed + b.fenced + b.deferred - n.queued - n.deferred = 0 then 'done' else b.state end,
        announce_after = case when b.queued + b.claimed + b.fenced + b.deferred - n.queued - n.deferred = 0 then null
                              else b.announce_after end,
        done_at = case when b.queued + b.claimed + b.fenced + b.deferred - n.queued - n.deferred = 0 then now() else b.done_at end
    from counted n
    where b.tenant_id = $1 and b.id = $2
    returning n.queued + n.deferred as skipped
)
select skipped::bigint as "skipped!" from batch
