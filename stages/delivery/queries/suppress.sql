-- Addresses that certainly do not exist. The contact rows are locked.
insert into suppressions (tenant_id, id, address, reason, scope, source, send_id)
select u.tenant_id, u.id, u.address, 'hard_bounce', 'all', 'delivery', u.send_id
from unnest($1::uuid[], $2::uuid[], $3::text[], $4::uuid[]) as u (tenant_id, id, address, send_id)
on conflict (tenant_id, address, reason) do nothing
