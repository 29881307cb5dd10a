-- Skips sends of one batch with their reasons, writes the facts, and moves the batch's counters and state. Answers how many were
-- skipped.
-- $1 tenant, $2 first and $3 last id of the batch, $4 month, $5 send ids, $6 reasons. Served by the primary key of sends.
-- The batch becomes resting here if all that is left is deferred: no later statement would do it.
with decisions as (
    select * from unnest($5::uuid[], $6::text[]) as v (id, reason)
), before as (
    select s.id, s.state, v.reason
    from sends s
    join decisions v on v.id = s.id
    where s.tenant_id = $1 and s.id between $2 and $3 and s.month = $4 and s.state in ('queued', 'deferred')
    order by s.id
    for update of s
), changed as (
    update sends s
    set state = 'skipped', reason = b.reason, decided_at = now(), next_attempt_at = null
    from before b
    where s.tenant_id = $1 and s.id between $2 and $3 and s.month = $4 and s.id = b.id
    returning s.id, b.state as was, b.reason
), facts as (
    insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
    select $1, c.id, gen_random_uuid(), $4, 'skipped', now(), jsonb_build_object('reason', c.reason) from changed c
), counted as (
    select count(*) filter (where was = 'queued')::integer as queued, count(*) filter (where was = 'deferred')::integer as deferred
    from changed
), left_open as (
    select b.queued + b.fenced - n.queued as in_progress,
           b.deferred - n.deferred as deferred,
           (select min(s.next_attempt_at)
            from sends s
            where s.tenant_id = $1 and s.id between $2 and $3 and s.month = $4 and s.state = 'deferred'
              and b.deferred > n.deferred and s.id not in (select c.id from changed c)) as due
    from batches b
    cross join counted n
    where b.tenant_id = $1 and b.id = $2
), next_state as (
    select case
               when in_progress + deferred = 0 then 'done'
               when in_progress = 0 and due > now() then 'resting'
           end as state,
           due
    from left_open
), batch as (
    update batches b
    set queued = b.queued - n.queued,
        deferred = b.deferred - n.deferred,
        skipped = b.skipped + n.queued + n.deferred,
        state = coalesce(j.state, b.state),
        announce_after = case j.state when 'done' then null when 'resting' then j.due else b.announce_after end,
        quiet_at = case when b.state = 'announced' and j.state is not null then now() else b.quiet_at end,
        done_at = case when j.state = 'done' then now() else b.done_at end
    from counted n
    cross join next_state j
    where b.tenant_id = $1 and b.id = $2 and b.state <> 'done'
    returning n.queued + n.deferred as skipped
)
select coalesce(sum(skipped), 0)::bigint as "skipped!" from batch
