-- Notes for the feeds of the tenants $1, one for each tenant, source and month. Facts about sends: $2 tenants, $3 months, $4 sends, $5 ids;
-- notices: $6 tenants, $7 ids; facts about contacts: $8 tenants, $9 ids.
insert into feed_notes (tenant_id, source, month, sends, ids)
select e.tenant_id, 'events', e.month, array_agg(e.send_id), array_agg(e.id)
from unnest($2::uuid[], $3::date[], $4::uuid[], $5::uuid[]) as e (tenant_id, month, send_id, id)
where e.tenant_id = any ($1::uuid[])
group by e.tenant_id, e.month
union all
select n.tenant_id, n.source, null, null, array_agg(n.id)
from (
    select tenant_id, id, 'notices' as source from unnest($6::uuid[], $7::uuid[]) as w (tenant_id, id)
    union all
    select tenant_id, id, 'contacts' from unnest($8::uuid[], $9::uuid[]) as w (tenant_id, id)
) n
where n.tenant_id = any ($1::uuid[])
group by n.tenant_id, n.source
