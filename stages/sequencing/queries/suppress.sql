-- Suppressions by the tenant's own plan. $1 tenants, $2 ids, $3 addresses, $4 scopes, $5 notes, each address once. One in force
-- is never weakened; one that has run out starts anew.
insert into suppressions as held (tenant_id, id, address, reason, scope, source, note)
select w.tenant_id, w.id, w.address, 'manual', w.scope, 'sequence', w.note
from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[]) as w (tenant_id, id, address, scope, note)
order by w.tenant_id, w.address
on conflict (tenant_id, address, reason) do update set
    scope = case
        when held.expires_at <= now() then excluded.scope
        when 'all' in (held.scope, excluded.scope) then 'all'
        else 'marketing'
    end,
    source = case when held.expires_at <= now() then excluded.source else held.source end,
    created_at = case when held.expires_at <= now() then now() else held.created_at end,
    note = coalesce(excluded.note, held.note),
    expires_at = null
returning tenant_id, id, address
