-- Addresses that a provider says do not exist: a suppression of everything, which outlives the contact. By key from signal to send
-- to contact. $1 tenants, $2 sends, $3 months, $4 ids for new suppressions. The contacts are locked.
insert into suppressions (tenant_id, id, address, reason, scope, source, send_id)
select distinct on (c.tenant_id, c.address) c.tenant_id, w.suppression_id, c.address, 'hard_bounce', 'all', 'provider', w.id
from unnest($1::uuid[], $2::uuid[], $3::date[], $4::uuid[]) as w (tenant_id, id, month, suppression_id)
cross join lateral (
    select s.contact_id from sends s where s.tenant_id = w.tenant_id and s.id = w.id and s.month = w.month offset 0
) s
cross join lateral (
    select c.tenant_id, c.address from contacts c where c.tenant_id = w.tenant_id and c.id = s.contact_id offset 0
) c
order by c.tenant_id, c.address, w.id
on conflict (tenant_id, address, reason) do update
set scope = 'all', source = 'provider', send_id = excluded.send_id, expires_at = null
where suppressions.scope <> 'all' or suppressions.expires_at is not null
