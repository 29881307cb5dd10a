-- Notes for feeds, one for each tenant, source and month. $1 tenants, $2 sources, $3 months, $4 sends, $5 facts.
insert into feed_notes (tenant_id, source, month, sends, ids)
select w.tenant_id, w.source, w.month, case when w.source = 'events' then array_agg(w.send_id) end, array_agg(w.id)
from unnest($1::uuid[], $2::text[], $3::date[], $4::uuid[], $5::uuid[]) as w (tenant_id, source, month, send_id, id)
group by w.tenant_id, w.source, w.month
