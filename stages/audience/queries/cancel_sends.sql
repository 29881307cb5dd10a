-- Cancels the queued and deferred sends of batches, whose rows the caller has locked, and books it on them. Answers how many.
-- $1 tenants, $2 first and $3 last ids of the batches, $4 months. Served by the primary key of `sends`.
with before as (
    select s.tenant_id, s.id, s.month, w.first as batch_id, s.state
    from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::date[]) as w (tenant_id, first, last, month)
    join sends s on s.tenant_id = w.tenant_id and s.id between w.first and w.last and s.month = w.month
    where s.state in ('queued', 'deferred')
    order by s.tenant_id, s.id
    for update of s
), changed as (
    update sends s
    set state = 'cancelled', reason = 'campaign_cancelled', decided_at = now(), next_attempt_at = null
    from before b
    where s.tenant_id = b.tenant_id and s.id = b.id and s.month = b.month
    returning b.tenant_id, b.batch_id, b.state as was
), counted as (
    select tenant_id, batch_id, count(*) filter (where was = 'queued')::integer as queued,
           count(*) filter (where was = 'deferred')::integer as deferred
    from changed
    group by tenant_id, batch_id
), booked as (
    update batches b
    set queued = b.queued - n.queued,
        deferred = b.deferred - n.deferred,
        cancelled = b.cancelled + n.queued + n.deferred,
        state = case when b.claimed + b.fenced = 0 then 'done' else b.state end,
        announce_after = case when b.claimed + b.fenced > 0 then b.announce_after end,
        done_at = case when b.claimed + b.fenced = 0 then now() end
    from counted n
    where b.tenant_id = n.tenant_id and b.id = n.batch_id
    returning n.queued + n.deferred as sends
)
select coalesce(sum(sends), 0)::bigint as "cancelled!" from booked
