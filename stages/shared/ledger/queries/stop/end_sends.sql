-- Ends the queued and deferred sends of batches, whose rows the caller has locked, and moves their counters: cancelled, or skipped
-- where `$5` says that the window was missed, which is a fact. Both count as skipped in the hour's totals. Answers how many, of either kind.
-- $1 tenants, $2 first and $3 last ids of the batches, $4 months, $6 shard. Served by the primary key of `sends`.
with asked as (
    select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::date[], $5::bool[]) as w (tenant_id, first, last, month, missed)
), before as (
    select s.tenant_id, s.id, s.month, w.first as batch_id, w.missed, s.state
    from asked w
    join sends s on s.tenant_id = w.tenant_id and s.id between w.first and w.last and s.month = w.month
    where s.state in ('queued', 'deferred')
    order by s.tenant_id, s.id
    for update of s
), changed as (
    update sends s
    set state = case when b.missed then 'skipped' else 'cancelled' end,
        reason = case when b.missed then 'window_missed' else 'campaign_cancelled' end,
        decided_at = now(),
        next_attempt_at = null
    from before b
    where s.tenant_id = b.tenant_id and s.id = b.id and s.month = b.month
    returning b.tenant_id, s.id, s.month, b.batch_id, b.missed, b.state as was
), facts as (
    insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
    select c.tenant_id, c.id, gen_random_uuid(), c.month, 'skipped', now(), jsonb_build_object('reason', 'window_missed')
    from changed c
    where c.missed
), counted as (
    select tenant_id, batch_id, missed, count(*)::integer as sends, count(*) filter (where was = 'queued')::integer as queued,
           count(*) filter (where was = 'deferred')::integer as deferred
    from changed
    group by tenant_id, batch_id, missed
), booked as (
    update batches b
    set queued = b.queued - n.queued,
        deferred = b.deferred - n.deferred,
        cancelled = b.cancelled + case when n.missed then 0 else n.sends end,
        skipped = b.skipped + case when n.missed then n.sends else 0 end,
        state = case when b.fenced = 0 then 'done' else b.state end,
        announce_after = case when b.fenced > 0 then b.announce_after end,
        quiet_at = case when b.fenced = 0 and b.state = 'announced' then now() else b.quiet_at end,
        done_at = case when b.fenced = 0 then now() end
    from counted n
    where b.tenant_id = n.tenant_id and b.id = n.batch_id
), totals as (
    insert into rollups as r (tenant_id, hour, kind, event, shard, count)
    select tenant_id, date_trunc('hour', now(), 'UTC'), 'campaign', 'skipped', $6, sum(sends)
    from counted
    group by tenant_id
    order by tenant_id
    on conflict (tenant_id, hour, kind, event, shard) do update set count = r.count + excluded.count
)
select coalesce(sum(sends) filter (where not missed), 0)::bigint as "cancelled!",
       coalesce(sum(sends) filter (where missed), 0)::bigint as "missed!"
from counted
