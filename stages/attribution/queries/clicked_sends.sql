-- The mails with human clicks of contacts before an outcome. $1 query indexes, $2 tenants, $3 contacts, $4 when the outcomes
-- happened. Served by contact_facts_human_clicks; the newest 200 of each.
select w.place as "place!", w.tenant_id as "tenant_id!", w.contact_id as "contact_id!", f.send_id as "send_id!"
from unnest($1::int[], $2::uuid[], $3::uuid[], $4::timestamptz[]) as w (place, tenant_id, contact_id, occurred_at)
cross join lateral (
    select f.send_id from contact_facts f
    where f.tenant_id = w.tenant_id and f.contact_id = w.contact_id and f.fact = 'clicked' and f.human_at is not null
      and f.human_at <= w.occurred_at
    order by f.human_at desc limit 200
) f
