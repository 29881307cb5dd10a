-- Announces waiting batches of running campaigns into $1 sends of room; at most $2 batches of one campaign are looked at;
-- $3 seconds until the first ring again.
-- Tenants take turns: a batch's place is what its tenant would then have in flight, so one with much in flight waits until
-- the others have as much. Within a tenant the older launch comes first. `campaigns_running` finds the campaigns,
-- `batches_open` the waiting batches of each, by the range of its ids: what is done is never read.
--
-- A paced campaign gets what both rules leave it. Evenly: `next_at` moves on by each batch's share of a minute; a second that
-- was missed may be made up for, no more. Exactly: what is handed on now, what is in flight and what left flight within the last
-- minute are together no more than a minute's mail, so that no minute anywhere can hold more. `batches_open` and `batches_paced`
-- serve that.
with running as (
    select c.tenant_id, c.id, c.launch_prefix, c.max_per_minute as pace
    from campaigns c
    where c.status = 'sending' and c.completed_at is null and not c.paused and c.materialized_at is not null
      and (c.closes_at is null or c.closes_at > now())
), waiting as (
    select b.tenant_id, b.id, b.load, r.id as campaign_id, r.pace
    from running r
    cross join lateral (
        select w.tenant_id, w.id,
               greatest(w.queued + w.claimed + w.fenced + case when r.pace is null then 0 else w.deferred end, 1) as load
        from batches w
        where w.lane = 'bulk' and w.state = 'waiting' and w.tenant_id = r.tenant_id
          and w.id between (r.launch_prefix || '000000000')::uuid and (r.launch_prefix || 'fffffffff')::uuid
        order by w.id
        limit $2
    ) b
), paced as materialized (
    select r.tenant_id, r.id, greatest(p.next_at, now() - interval '1 second') as next_at, r.pace - used.sends as room
    from running r
    join campaign_paces p on p.tenant_id = r.tenant_id and p.campaign_id = r.id
    cross join lateral (
        select coalesce(sum(b.handed), 0) as sends
        from (
            select i.handed
            from batches i
            where i.lane = 'bulk' and i.state = 'announced' and i.tenant_id = r.tenant_id
              and i.id between (r.launch_prefix || '000000000')::uuid and (r.launch_prefix || 'fffffffff')::uuid
            union all
            select q.handed
            from batches q
            where q.tenant_id = r.tenant_id and q.campaign_id = r.id and q.handed is not null and q.state <> 'announced'
              and q.quiet_at > now() - interval '60 seconds'
        ) b
    ) used
    where r.pace is not null
), allowed as (
    select w.tenant_id, w.id, w.load, w.campaign_id, w.pace
    from (select *, sum(load) over (partition by tenant_id, campaign_id order by id) as up_to from waiting) w
    left join paced p on p.tenant_id = w.tenant_id and p.id = w.campaign_id
    where w.pace is null
       or w.up_to <= p.room and p.next_at + make_interval(secs => (w.up_to - w.load) * 60.0 / w.pace) <= now()
), in_flight as materialized (
    select tenant_id, sum(queued + claimed + fenced) as load
    from batches
    where lane = 'bulk' and state = 'announced'
    group by tenant_id
), placed as (
    select w.tenant_id, w.id, w.load, w.campaign_id, w.pace,
           coalesce(f.load, 0) + sum(w.load) over (partition by w.tenant_id order by w.id) as place
    from allowed w
    left join in_flight f on f.tenant_id = w.tenant_id
), summed as (
    select *, sum(load) over (order by place, tenant_id, id) as up_to
    from placed
), taken as (
    select b.tenant_id, b.id, s.load, s.campaign_id, s.pace
    from summed s
    join batches b on b.tenant_id = s.tenant_id and b.id = s.id
    where s.up_to - s.load < $1 and b.state = 'waiting'
    order by b.tenant_id, b.id
    for update of b skip locked
), moved_on as (
    update campaign_paces p
    set next_at = w.next_at + make_interval(secs => t.load * 60.0 / t.pace)
    from (select tenant_id, campaign_id, pace, sum(load) as load from taken where pace is not null group by 1, 2, 3) t
    join paced w on w.tenant_id = t.tenant_id and w.id = t.campaign_id
    where p.tenant_id = t.tenant_id and p.campaign_id = t.campaign_id
)
update batches b
set state = 'announced',
    announcement = b.announcement + 1,
    announce_after = now() + make_interval(secs => $3 * least(power(2, least(b.announcement, 5)), 30)),
    handed = case when t.pace is not null then t.load end
from taken t
where b.tenant_id = t.tenant_id and b.id = t.id
returning b.tenant_id, b.id, b.announcement
