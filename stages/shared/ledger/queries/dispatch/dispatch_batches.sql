-- The fair scheduler: announces waiting batches of running campaigns, of tenants that are not paused, up to $1 sends of remaining
-- backlog. $2: most batches of one campaign, and most campaigns, that are considered. $3: seconds until the first repeated announcement. $4: sends in flight
-- of each tenant with a provider connection of its own. Such a tenant is isolated: it is as fast as its provider, and takes no capacity
-- from others. $5: the urgencies of campaigns, the most urgent first. Mail of no campaign is as urgent as that of a normal one.
-- Tenants take turns: a batch's slot is what its tenant would then have in flight, so a tenant with much in flight waits until
-- the others have as much. Within a tenant the more urgent campaign comes first, of equal ones the older launch. `campaigns_running`
-- finds the campaigns, `batches_open` the waiting batches of each, by the range of its ids: batches that are done are never read. Of most
-- running campaigns only that a batch waits is read: with a thousand of them this takes 20 ms.
--
-- A paced campaign gets what both rules leave it. Evenly: `next_at` moves on by each batch's share of a minute; a second that
-- was missed may be made up for, no more. Exactly: what is dispatched now, what is in flight and what left flight within the last
-- minute are together no more than a minute's mail, so that no minute anywhere can hold more. `batches_open` and `batches_paced`
-- serve that.
--
-- A campaign whose tripwire is armed gets its first thousand sends dispatched, and then only as many more as are through, until nine
-- tenths of the first thousand are, or of the first 64 batches, should some of the first thousand be announced in vain. So the tripwire sees
-- the first results before the rest is under way, a campaign of any size can still be stopped by it, and delivery does not run dry
-- meanwhile. Batches that wait for a time, or for the winner of a test, are not among the first before that; nor is what is set aside.
--
-- Large batches of transactional mail, and those of sequences that send much, belong to no campaign; their tenants are found by stepping from
-- one to the next along `batches_direct_waiting`, however many batches each has.
with recursive direct as (
    (select b.tenant_id from batches b
     where b.lane = 'bulk' and b.state = 'waiting' and b.campaign_id is null
     order by b.tenant_id limit 1)
    union all
    select n.tenant_id
    from direct d
    cross join lateral (
        select b.tenant_id from batches b
        where b.lane = 'bulk' and b.state = 'waiting' and b.campaign_id is null and b.tenant_id > d.tenant_id
        order by b.tenant_id limit 1
    ) n
), in_flight as materialized (
    select tenant_id, weight from bulk_in_flight
), isolated as materialized (
    select distinct tenant_id from own_routes
), open as (
    -- Running campaigns with a waiting batch, the first in its tenant's turn first. One that gets nothing now costs a look or two.
    select o.*, coalesce(f.weight, 0) + (row_number() over (partition by o.tenant_id order by o.rank, o.launch_prefix) - 1) * 500 as turn
    from (
        select c.tenant_id, c.id, c.launch_prefix, c.max_per_minute as pace, c.tripwire, c.bounce_percent, c.complaint_percent,
               array_position($5::text[], c.urgency) as rank
        from campaigns c
        where c.status = 'sending' and c.completed_at is null and not c.paused
          and (c.closes_at is null or c.closes_at > now())
          and exists (
              select from batches w
              where w.lane = 'bulk' and w.state = 'waiting' and w.tenant_id = c.tenant_id
                and w.id between first_id_of_launch(c.launch_prefix) and last_id_of_launch(c.launch_prefix))
          and not exists (select from tenants t where t.id = c.tenant_id and t.paused_at is not null)
        offset 0
    ) o
    left join in_flight f on f.tenant_id = o.tenant_id
    where case when o.tenant_id in (select tenant_id from isolated) then coalesce(f.weight, 0) < $4 else $1::bigint > 0 end
), running as (
    select c.tenant_id, c.id, c.launch_prefix, c.pace, c.rank, c.last_id
    from (
        select c.*, case when c.tripwire <> 'armed' or f.is_decided then 'ffffffff-ffff-ffff-ffff-ffffffffffff' else f.last_id end as last_id,
               f.is_decided, f.is_whole, f.decided, f.bounced, f.complained
        from (select * from open order by pace is null, turn, tenant_id) c
        -- The batches with the first thousand recipients, and those that may follow them already: whether the first are through. And the
        -- results of all that are read here.
        cross join lateral (
            select coalesce(sum(b.size - b.open_sends) filter (where b.is_first) * 10 >= sum(b.size) filter (where b.is_first) * 9
                            or max(b.through) * 10 >= max(b.all_size) * 9, true) as is_decided,
                   coalesce(bool_and(b.is_whole), true) as is_whole,
                   (array_agg(b.id order by b.id desc))[1] as last_id, coalesce(max(b.all_decided), 0) as decided,
                   coalesce(max(b.all_bounced), 0) as bounced, coalesce(max(b.all_complained), 0) as complained
            from (
                select b.*, b.up_to - b.size < 1000 as is_first, sum(b.size - b.open_sends) over () as through,
                       sum(b.size) over () as all_size, sum(b.decided) over () as all_decided, sum(b.bounced) over () as all_bounced,
                       sum(b.complained) over () as all_complained
                from (
                    -- A send that was tried and is deferred does not keep the rest waiting; nor do a few slow receivers.
                    select b.id, n.size, least(b.queued + case when b.quiet_at is null then b.fenced else 0 end, n.size) as open_sends,
                           b.sent + b.failed + b.unknown + b.expired as decided, b.bounced, b.complained,
                           sum(n.size) over (order by b.id) as up_to, count(*) over () < 64 as is_whole
                    from (
                        select * from batches b
                        where c.tripwire = 'armed' and b.tenant_id = c.tenant_id
                          and b.id between first_id_of_launch(c.launch_prefix) and last_id_of_launch(c.launch_prefix)
                          and b.state not in ('timed', 'held')
                        order by b.id limit 64
                    ) b
                    cross join lateral (
                        select case when is_set_aside(b.announce_after, b.quiet_at) then 0 else b.size end as size
                    ) n
                ) b
            ) b
            where b.is_first or b.up_to <= 1000 + b.through
        ) f
        offset 0
    ) c
    -- As `tripwire::decide`: a campaign above its limits gets nothing more, even before the tripwire sweep pauses it. Where batches
    -- beyond those read here may have results, only the sweep decides: it reads these, too, and what it does not pause must not stand still.
    where not (c.tripwire = 'armed' and c.is_whole
               and (c.complained * 100 > c.complaint_percent * greatest(c.decided, 1000)
                    or c.bounced * 100 > c.bounce_percent * greatest(c.decided, 100)))
      and exists (
          select from batches w
          where w.lane = 'bulk' and w.state = 'waiting' and w.tenant_id = c.tenant_id
            and w.id between first_id_of_launch(c.launch_prefix) and last_id_of_launch(c.launch_prefix) and w.id <= c.last_id)
    -- No more campaigns than batches that can be taken. A paced one may get nothing now: it keeps no other from being considered.
    limit $2 + (select count(*) from open where pace is not null)
), waiting as (
    select b.tenant_id, b.id, b.weight, r.id as campaign_id, r.pace, r.rank
    from running r
    cross join lateral (
        select w.tenant_id, w.id, greatest(w.queued + w.fenced + w.deferred, 1) as weight
        from batches w
        where w.lane = 'bulk' and w.state = 'waiting' and w.tenant_id = r.tenant_id
          and w.id between first_id_of_launch(r.launch_prefix) and last_id_of_launch(r.launch_prefix)
          and w.id <= r.last_id
        order by w.id
        limit $2
    ) b
    union all
    select b.tenant_id, b.id, b.weight, null, null, array_position($5::text[], 'normal')
    from direct d
    cross join lateral (
        select w.tenant_id, w.id, greatest(w.queued + w.fenced + w.deferred, 1) as weight
        from batches w
        where w.lane = 'bulk' and w.state = 'waiting' and w.campaign_id is null and w.tenant_id = d.tenant_id
        order by w.id
        limit $2
    ) b
    where not exists (select from tenants t where t.id = d.tenant_id and t.paused_at is not null)
), paced as materialized (
    -- Further ahead than a minute's mail is only what a clock noted that was set back since.
    select r.tenant_id, r.id,
           case when p.next_at > now() + interval '60 seconds' then now() else greatest(p.next_at, now() - interval '1 second') end as next_at,
           r.pace - used.sends as remaining
    from running r
    join campaign_paces p on p.tenant_id = r.tenant_id and p.campaign_id = r.id
    cross join lateral (
        select coalesce(sum(b.dispatched_sends), 0) as sends
        from (
            select i.dispatched_sends
            from batches i
            where i.lane = 'bulk' and i.state = 'announced' and i.tenant_id = r.tenant_id
              and i.id between first_id_of_launch(r.launch_prefix) and last_id_of_launch(r.launch_prefix)
            union all
            select q.dispatched_sends
            from batches q
            where q.tenant_id = r.tenant_id and q.campaign_id = r.id and q.dispatched_sends is not null and q.state <> 'announced'
              and q.quiet_at between now() - interval '60 seconds' and now() + interval '60 seconds'
        ) b
    ) used
    where r.pace is not null
), allowed as (
    select w.tenant_id, w.id, w.weight, w.campaign_id, w.pace, w.rank
    from (select *, sum(weight) over (partition by tenant_id, campaign_id order by id) as up_to from waiting) w
    left join paced p on p.tenant_id = w.tenant_id and p.id = w.campaign_id
    where w.pace is null
       or w.up_to <= p.remaining and p.next_at + make_interval(secs => (w.up_to - w.weight) * 60.0 / w.pace) <= now()
), slotted as (
    select w.tenant_id, w.id, w.weight, w.campaign_id, w.pace, w.tenant_id in (select tenant_id from isolated) as isolated,
           coalesce(f.weight, 0) + sum(w.weight) over (partition by w.tenant_id order by w.rank, w.id) as slot
    from allowed w
    left join in_flight f on f.tenant_id = w.tenant_id
), summed as (
    select *, sum(weight) filter (where not isolated) over (order by slot, tenant_id, id) as up_to
    from slotted
), taken as (
    select b.tenant_id, b.id, s.weight, s.campaign_id, s.pace
    from summed s
    join batches b on b.tenant_id = s.tenant_id and b.id = s.id
    where case when s.isolated then s.slot - s.weight < $4 else s.up_to - s.weight < $1 end and b.state = 'waiting'
    order by b.tenant_id, b.id
    for update of b skip locked
), moved_on as (
    update campaign_paces p
    set next_at = w.next_at + make_interval(secs => t.weight * 60.0 / t.pace)
    from (select tenant_id, campaign_id, pace, sum(weight) as weight from taken where pace is not null group by 1, 2, 3) t
    join paced w on w.tenant_id = t.tenant_id and w.id = t.campaign_id
    where p.tenant_id = t.tenant_id and p.campaign_id = t.campaign_id
)
update batches b
set state = 'announced',
    announcement = b.announcement + 1,
    announce_after = now() + make_interval(secs => $3 * least(power(2, least(b.announcement, 5)), 30)),
    -- What has just left with it stays counted.
    dispatched_sends = case when t.pace is not null then greatest(
        t.weight, case when b.quiet_at between now() - interval '60 seconds' and now() + interval '60 seconds' then b.dispatched_sends end) end
from taken t
where b.tenant_id = t.tenant_id and b.id = t.id
returning b.tenant_id, b.id, b.announcement, t.weight as "weight!"
