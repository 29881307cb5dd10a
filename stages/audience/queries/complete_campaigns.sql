-- Completes these campaigns, which the caller has locked in a statement before this one, if they still have nothing
-- open: sends may have become queued again before the lock. $1 tenants, $2 campaigns.
with over as (
    select c.tenant_id, c.id
    from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
    join campaigns c on c.tenant_id = w.tenant_id and c.id = w.id
    where (c.status = 'sending' and c.materialized_at is not null or c.status = 'cancelled')
      and c.completed_at is null
      and not exists (
          select from batches b where b.tenant_id = c.tenant_id and b.campaign_id = c.id and b.state <> 'done')
), unpinned as (
    delete from launch_audiences l using over o where l.tenant_id = o.tenant_id and l.campaign_id = o.id
), unpaced as (
    delete from campaign_paces p using over o where p.tenant_id = o.tenant_id and p.campaign_id = o.id
)
update campaigns c
set status = case c.status when 'sending' then 'sent' else c.status end,
    completed_at = now(),
    updated_at = now(),
    counts = (
        select jsonb_build_object(
                   'queued', coalesce(sum(b.queued), 0),
                   'fenced', coalesce(sum(b.fenced), 0), 'deferred', coalesce(sum(b.deferred), 0),
                   'sent', coalesce(sum(b.sent), 0), 'failed', coalesce(sum(b.failed), 0),
                   'unknown', coalesce(sum(b.unknown), 0), 'skipped', coalesce(sum(b.skipped), 0),
                   'cancelled', coalesce(sum(b.cancelled), 0), 'expired', coalesce(sum(b.expired), 0),
                   'delivered', coalesce(sum(b.delivered), 0), 'delivered_confirmed', coalesce(sum(b.confirmed), 0),
                   'bounced', coalesce(sum(b.bounced), 0),
                   'complained', coalesce(sum(b.complained), 0), 'opened', coalesce(sum(b.opened), 0),
                   'clicked', coalesce(sum(b.clicked), 0), 'unsubscribed', coalesce(sum(b.unsubscribed), 0))
        from batches b
        where b.tenant_id = c.tenant_id and b.campaign_id = c.id)
from over o
where c.tenant_id = o.tenant_id and c.id = o.id
returning c.tenant_id, c.id, c.status
