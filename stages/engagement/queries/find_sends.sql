-- The send of each fact: the one it names, where that is the tenant's and went by this provider or is not known to have gone; else
-- the one its id with the provider belongs to. $1 places, $2 tenants, $3 providers, $4 sends named, $5 their months, $6 ids with the
-- provider. Served by the primary keys.
select w.place as "place!", coalesce(s.id, m.send_id) as send_id
from unnest($1::int[], $2::uuid[], $3::text[], $4::uuid[], $5::date[], $6::text[])
    as w (place, tenant_id, provider, send_id, month, message_id)
left join lateral (
    select s.id from sends s
    where s.tenant_id = w.tenant_id and s.id = w.send_id and s.month = w.month
      and (w.provider is null or s.provider is null or s.provider = w.provider)
    offset 0
) s on true
left join lateral (
    select m.send_id from provider_messages m
    where m.tenant_id = w.tenant_id and m.provider = w.provider and m.message_id = w.message_id
    offset 0
) m on true
