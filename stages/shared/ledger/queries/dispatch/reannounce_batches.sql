-- Batches that are due to be announced (again): at most $1 that are announced or resting, and as many timed ones, the longest due first. $2:
-- seconds until the first repeated announcement, $3 of a priority batch. Answers the new state of each:
--   announced  is to be announced
--   resting    all that is open is deferred: announced again at the first of these times
--   waiting    its campaign is paused and no send of it is fenced: it must not fill the lane meanwhile. Or its time has come in the bulk
--              lane: mail that was put off is mail like any other, and waits for dispatch. Or three announcements in the bulk lane have not
--              helped: it waits for its tenant's turn again, so that batches no stage can handle do not fill the lane for all. Dispatch
--              announces it, and goes on doubling the pause. Not of a paced campaign: it has a minute's mail in the lane at most, and
--              its pace counts what is announced
-- Nothing of a cancelled campaign is announced, nor what a missed window leaves: the sweep `end_stopped_campaigns` ends both. Served by
-- `batches_open` and `batches_timed`.
with repeated as (
    select b.tenant_id, b.id,
           coalesce(c.paused, false)
           or b.lane = 'bulk' and (b.state = 'resting' or b.announcement >= 3 and b.fenced = 0 and b.dispatched_sends is null) as waits
    from batches b
    left join campaigns c on c.tenant_id = b.tenant_id and c.id = b.campaign_id
    where b.lane in ('priority', 'bulk') and b.state in ('announced', 'resting') and b.announce_after <= now()
      and (c.id is null
           or c.status = 'sending' and (not c.paused or b.fenced = 0))
    order by b.announce_after
    limit $1
    for update of b skip locked
), timed as (
    select b.tenant_id, b.id, coalesce(c.paused, false) or b.lane = 'bulk' as waits
    from batches b
    left join campaigns c on c.tenant_id = b.tenant_id and c.id = b.campaign_id
    where b.timed_until <= now()
      and (c.id is null
           or c.status = 'sending' and (not c.paused or b.fenced = 0))
    order by b.timed_until
    limit $1
    for update of b skip locked
), due as (
    select * from repeated union all select * from timed
), found as (
    select b.tenant_id, b.id,
           case
               when b.queued + b.fenced = 0 and l.later > now() then 'resting'
               when d.waits then 'waiting'
               else 'announced'
           end as state,
           l.later
    from due d
    join batches b on b.tenant_id = d.tenant_id and b.id = d.id
    cross join lateral (
        select min(s.next_attempt_at) as later
        from sends s
        where b.queued + b.fenced = 0 and s.tenant_id = b.tenant_id and s.month = b.month and s.state = 'deferred'
          and s.id between b.id and last_id_of(b.id)
    ) l
)
update batches b
set state = f.state,
    announcement = b.announcement + (f.state = 'announced')::integer,
    quiet_at = case
        when b.state = 'announced' and f.state <> 'announced' then now()
        when b.lane = 'priority' and b.state <> 'announced' and f.state = 'announced' then now()
        else b.quiet_at
    end,
    announce_after = case f.state
        when 'announced' then now() + make_interval(
            secs => case b.lane when 'priority' then $3::float8 else $2::float8 end * least(power(2, least(b.announcement, 5)), 30))
        when 'resting' then f.later
    end
from found f
where b.tenant_id = f.tenant_id and b.id = f.id
returning b.tenant_id, b.id, b.lane as "lane: Lane", b.announcement, b.state
