-- The results of running campaigns with an armed tripwire that may be above their limits. A slow campaign has a batch for each mail, so what is
-- decided is added up only as far as it matters: a batch has at least one decided send, and beyond so many the rates are below the limits for
-- certain. If there are fewer, `decided` is exact. Served by campaigns_running, batches_for_tripwire and batches_by_campaign.
select c.tenant_id as "tenant_id!", c.id as "id!", c.bounce_percent as "bounce_percent!", c.complaint_percent as "complaint_percent!",
       d.decided as "decided!", n.bounced as "bounced!", n.complained as "complained!"
from campaigns c
cross join lateral (
    select coalesce(sum(b.bounced), 0) as bounced, coalesce(sum(b.complained), 0) as complained
    from batches b
    where b.tenant_id = c.tenant_id and b.campaign_id = c.id and b.needs_tripwire
) n
cross join lateral (
    select coalesce(sum(l.decided), 0) as decided
    from (
        select b.sent + b.failed + b.unknown + b.expired as decided
        from batches b
        where b.tenant_id = c.tenant_id and b.campaign_id = c.id and b.sent + b.failed + b.unknown + b.expired > 0
        order by b.id
        -- Of a limit of 0 percent, as of a very small one: all.
        limit (1 + 100 * greatest(n.bounced / greatest(c.bounce_percent, 1e-9), n.complained / greatest(c.complaint_percent, 1e-9)))::bigint
    ) l
) d
where c.status = 'sending' and c.completed_at is null and not c.paused and c.tripwire = 'armed' and n.bounced + n.complained > 0
