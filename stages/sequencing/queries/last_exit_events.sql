-- The last event that ends the enrollments of each contact in a sequence. $1 tenants, $2 contacts, $3 sequences, $4 and $5 the events: names and
-- properties. By `product_events_by_contact`.
select w.tenant_id as "tenant_id!", w.contact_id as "contact_id!", w.sequence_id as "sequence_id!", p.received_at as "received_at!",
       p.id as "id!"
from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::jsonb[]) as w (tenant_id, contact_id, sequence_id, name, properties)
cross join lateral (
    select p.received_at, p.id from product_events p
    where p.tenant_id = w.tenant_id and p.contact_id = w.contact_id and p.name = w.name and p.properties @> w.properties
      and p.occurred_at > p.received_at - interval '1 day'
    order by p.received_at desc, p.id desc limit 1
) p
