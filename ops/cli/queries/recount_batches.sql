-- Batches whose counters differ from a recount of their sends, where these are still kept. $1 a tenant, or null for all. One pass over sends, joined by hash.
with sends_of as (
    select s.tenant_id, batch_of(s.id) as batch_id,
           count(*) as size,
           count(*) filter (where state = 'queued') as queued,
           count(*) filter (where state = 'fenced') as fenced, count(*) filter (where state = 'deferred') as deferred,
           count(*) filter (where state = 'sent') as sent, count(*) filter (where state = 'failed') as failed,
           count(*) filter (where state = 'unknown') as unknown, count(*) filter (where state = 'skipped') as skipped,
           count(*) filter (where state = 'cancelled') as cancelled, count(*) filter (where state = 'expired') as expired,
           count(counted_delivered_at(provider, state, decided_at, delivered_at, bounced_at)) as delivered,
           count(counted_confirmed_at(provider, delivered_at, bounced_at)) as confirmed, count(bounced_at) as bounced, count(complained_at) as complained,
           count(opened_at) as opened, count(human_opened_at) as opened_human, count(clicked_at) as clicked,
           count(human_clicked_at) as clicked_human, count(unsubscribed_at) as unsubscribed,
           count(replied_at) as replied
    from sends s
    where $1::uuid is null or s.tenant_id = $1
    group by 1, 2
), compared as (
    select b.tenant_id, b.id, c.counter, c.booked, c.counted
    from batches b
    left join sends_of s on s.tenant_id = b.tenant_id and s.batch_id = b.id
    cross join lateral (values
        ('size', b.size, s.size), ('queued', b.queued, s.queued), ('fenced', b.fenced, s.fenced),
        ('deferred', b.deferred, s.deferred), ('sent', b.sent, s.sent), ('failed', b.failed, s.failed),
        ('unknown', b.unknown, s.unknown), ('skipped', b.skipped, s.skipped), ('cancelled', b.cancelled, s.cancelled),
        ('expired', b.expired, s.expired), ('delivered', b.delivered, s.delivered), ('confirmed', b.confirmed, s.confirmed), ('bounced', b.bounced, s.bounced),
        ('complained', b.complained, s.complained), ('opened', b.opened, s.opened), ('opened_human', b.opened_human, s.opened_human),
        ('clicked', b.clicked, s.clicked), ('clicked_human', b.clicked_human, s.clicked_human),
        ('unsubscribed', b.unsubscribed, s.unsubscribed),
        ('replied', b.replied, s.replied)
    ) as c (counter, booked, counted)
    where ($1::uuid is null or b.tenant_id = $1) and b.month not in (select month from dropped_months)
)
select tenant_id as "tenant_id!", counter as "counter!", 'batch ' || id as "of!", booked::bigint as "stored!",
       coalesce(counted, 0) as "recounted!"
from compared
where booked <> coalesce(counted, 0)
order by tenant_id, id, counter
limit 1000
