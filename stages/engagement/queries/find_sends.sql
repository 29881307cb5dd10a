-- The send of each fact, in the order of the facts: the one it names, where that is the tenant's and went by this provider or is not known
-- to have gone; else the one its id with the provider belongs to. $1 tenants, $2 providers, $3 sends named, $4 their months, $5 ids with
-- the provider. Served by the primary keys, so each fact has one row.
select coalesce(s.id, m.send_id) as "send_id?"
from unnest($1::uuid[], $2::text[], $3::uuid[], $4::date[], $5::text[]) with ordinality
    as w (tenant_id, provider, send_id, month, message_id, place)
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
order by w.place
