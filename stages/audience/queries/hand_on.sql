-- Announces waiting batches of running campaigns into $1 sends of room; at most $2 batches of one campaign are looked at;
-- $3 seconds until the first ring again.
-- Tenants take turns: a batch's place is what its tenant would then have in flight, so one with much in flight waits until
-- the others have as much. Within a tenant the older launch comes first. `campaigns_running` finds the campaigns,
-- `batches_open` the waiting batches of each, by the range of its ids: what is done is never read.
with running as (
    select c.tenant_id, c.id, c.launch_prefix
    from campaigns c
    where c.status = 'sending' and c.completed_at is null and not c.paused and c.materialized_at is not null
), waiting as (
    select b.tenant_id, b.id, b.load
    from running r
    cross join lateral (
        select w.tenant_id, w.id, greatest(w.queued + w.claimed + w.fenced, 1) as load
        from batches w
        where w.lane = 'bulk' and w.state = 'waiting' and w.tenant_id = r.tenant_id
          and w.id between (r.launch_prefix || '000000000')::uuid and (r.launch_prefix || 'fffffffff')::uuid
        order by w.id
        limit $2
    ) b
), in_flight as materialized (
    select tenant_id, sum(queued + claimed + fenced) as load
    from batches
    where lane = 'bulk' and state = 'announced'
    group by tenant_id
), placed as (
    select w.tenant_id, w.id, w.load,
           coalesce(f.load, 0) + sum(w.load) over (partition by w.tenant_id order by w.id) as place
    from waiting w
    left join in_flight f on f.tenant_id = w.tenant_id
), summed as (
    select tenant_id, id, load, sum(load) over (order by place, tenant_id, id) as up_to
    from placed
), taken as (
    select b.tenant_id, b.id
    from summed s
    join batches b on b.tenant_id = s.tenant_id and b.id = s.id
    where s.up_to - s.load < $1 and b.state = 'waiting'
    order by b.tenant_id, b.id
    for update of b skip locked
)
update batches b
set state = 'announced',
    announcement = b.announcement + 1,
    announce_after = now() + make_interval(secs => $3 * least(power(2, least(b.announcement, 5)), 30))
from taken t
where b.tenant_id = t.tenant_id and b.id = t.id
returning b.tenant_id, b.id, b.announcement
