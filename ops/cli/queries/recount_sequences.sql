-- Totals of sequences' mail by template content that differ from a recount of its batches. $1 a tenant, or null for all. A batch
-- is one step's; its first send says whose.
with booked as (
    select t.tenant_id, t.sequence_id, t.content_id, sum(sent) as sent, sum(bounced) as bounced, sum(complained) as complained,
           sum(opened) as opened, sum(opened_human) as opened_human, sum(clicked) as clicked, sum(clicked_human) as clicked_human,
           sum(unsubscribed) as unsubscribed, sum(replied) as replied, sum(delivered) as delivered, sum(confirmed) as confirmed
    from (select tenant_id, sequence_id, content_id, sent, bounced, complained, opened, opened_human, clicked, clicked_human,
                 unsubscribed, replied, delivered, confirmed from content_totals
          union all
          select tenant_id, sequence_id, content_id, sent, bounced, complained, opened, opened_human, clicked, clicked_human,
                 unsubscribed, replied, delivered, confirmed from content_changes) t
    where t.sequence_id <> '00000000-0000-0000-0000-000000000000' and ($1::uuid is null or t.tenant_id = $1)
    group by 1, 2, 3
), counted as (
    select b.tenant_id, s.sequence_id, b.content_id, sum(b.sent) as sent, sum(b.bounced) as bounced, sum(b.complained) as complained,
           sum(b.opened) as opened, sum(b.opened_human) as opened_human, sum(b.clicked) as clicked,
           sum(b.clicked_human) as clicked_human, sum(b.unsubscribed) as unsubscribed, sum(b.replied) as replied,
           sum(b.delivered) as delivered, sum(b.confirmed) as confirmed
    from batches b
    join sequence_sends s on s.tenant_id = b.tenant_id and s.send_id = b.id
    where b.kind = 'sequence' and ($1::uuid is null or b.tenant_id = $1)
    group by 1, 2, 3
)
select coalesce(b.tenant_id, c.tenant_id) as "tenant_id!", v.counter as "counter!",
       'sequence ' || coalesce(b.sequence_id, c.sequence_id) as "of!",
       coalesce(v.booked, 0)::bigint as "stored!", coalesce(v.counted, 0)::bigint as "recounted!"
from booked b
full join counted c on c.tenant_id = b.tenant_id and c.sequence_id = b.sequence_id and c.content_id = b.content_id
cross join lateral (values
    ('sent', b.sent, c.sent), ('bounced', b.bounced, c.bounced), ('complained', b.complained, c.complained),
    ('opened', b.opened, c.opened), ('opened_human', b.opened_human, c.opened_human), ('clicked', b.clicked, c.clicked),
    ('clicked_human', b.clicked_human, c.clicked_human), ('unsubscribed', b.unsubscribed, c.unsubscribed),
    ('replied', b.replied, c.replied), ('delivered', b.delivered, c.delivered), ('confirmed', b.confirmed, c.confirmed)
) as v (counter, booked, counted)
where coalesce(v.booked, 0) <> coalesce(v.counted, 0)
  -- Batches go with their months, totals stay.
  and (coalesce(v.booked, 0) < coalesce(v.counted, 0) or not exists (select from dropped_months))
order by 1, 3, 2
limit 1000
