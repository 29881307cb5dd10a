-- Totals of hours that differ from a recount of sends and events. $1 a tenant, or null for all. Sent, failed, unknown, skipped and bounced
-- are recounted from the sends by when they were decided, the facts by their first time, and each single open and click, and each
-- bounce by class, from the events. Once a month of the ledger was dropped, only a total that is too small can be told.
with facts as (
    select s.tenant_id, b.kind, f.event, date_trunc('hour', f.at, 'UTC') as hour
    from sends s
    join batches b on b.tenant_id = s.tenant_id and b.id = batch_of(s.id)
    cross join lateral (values
        (case when s.state = 'expired' then 'failed' when s.state = 'cancelled' then 'skipped'
              when s.state in ('sent', 'failed', 'unknown', 'skipped') then s.state end, s.decided_at),
        ('bounced', s.bounced_at), ('delivered', counted_delivered_at(s.provider, s.state, s.decided_at, s.delivered_at, s.bounced_at)),
        ('confirmed', counted_confirmed_at(s.provider, s.delivered_at, s.bounced_at)), ('complained', s.complained_at), ('opened', s.opened_at),
        ('opened_human', s.human_opened_at), ('clicked', s.clicked_at), ('clicked_human', s.human_clicked_at),
        ('unsubscribed', s.unsubscribed_at), ('replied', s.replied_at)
    ) as f (event, at)
    where f.at is not null and f.event is not null and b.kind <> 'test' and ($1::uuid is null or s.tenant_id = $1)
    union all
    select e.tenant_id, b.kind, case e.type when 'bounced' then 'bounced_' || (e.detail ->> 'class') else e.type || '_total' end,
           date_trunc('hour', e.occurred_at, 'UTC')
    from events e
    join batches b on b.tenant_id = e.tenant_id and b.id = batch_of(e.send_id)
    where e.type in ('opened', 'clicked', 'bounced') and b.kind <> 'test' and ($1::uuid is null or e.tenant_id = $1)
), counted as (
    select tenant_id, kind, event, hour, count(*) as count from facts group by 1, 2, 3, 4
), booked as (
    select tenant_id, kind, event, hour, sum(count) as count from rollups
    where kind not in ('failure', 'suppression') and ($1::uuid is null or tenant_id = $1)
    group by 1, 2, 3, 4
)
select coalesce(b.tenant_id, c.tenant_id) as "tenant_id!", coalesce(b.event, c.event) as "counter!",
       coalesce(b.kind, c.kind) || to_char(coalesce(b.hour, c.hour) at time zone 'UTC', ' YYYY-MM-DD"T"HH24":00Z"') as "of!",
       coalesce(b.count, 0)::bigint as "stored!", coalesce(c.count, 0)::bigint as "recounted!"
from booked b
full join counted c on c.tenant_id = b.tenant_id and c.kind = b.kind and c.event = b.event and c.hour = b.hour
where coalesce(b.count, 0) <> coalesce(c.count, 0)
  and (coalesce(b.count, 0) < coalesce(c.count, 0) or not exists (select from dropped_months))
order by 1, coalesce(b.hour, c.hour), 3, 2
limit 1000
