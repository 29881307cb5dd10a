-- Notes mails whose clicks were classified again, for tenants that have outcomes: the credit may belong to another mail now. One note
-- for each tenant. $1 tenants, $2 sends. Served by the key of outcomes.
insert into late_facts (tenant_id, source, ids)
select w.tenant_id, 'rescored', array_agg(w.send_id)
from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, send_id)
where exists (select from outcomes o where o.tenant_id = w.tenant_id)
group by w.tenant_id
