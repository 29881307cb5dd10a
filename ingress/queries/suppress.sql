-- Writes suppressions given as arrays, in key order. A row that is in force is never weakened: the wider scope, the later
-- end and the first source hold. A row that has run out starts anew, under its old id.
insert into suppressions as held (tenant_id, id, address, reason, scope, source, note, expires_at)
select $1, new.id, new.address, new.reason, new.scope, 'api', new.note, new.expires_at
from unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::timestamptz[])
    as new (id, address, reason, scope, note, expires_at)
order by new.address, new.reason
on conflict (tenant_id, address, reason) do update set
    scope = case
        when held.expires_at <= now() then excluded.scope
        when 'all' in (held.scope, excluded.scope) then 'all'
        else 'marketing'
    end,
    source = case when held.expires_at <= now() then excluded.source else held.source end,
    created_at = case when held.expires_at <= now() then now() else held.created_at end,
    note = coalesce(excluded.note, held.note),
    expires_at = case
        when held.expires_at <= now() then excluded.expires_at
        when held.expires_at is null or excluded.expires_at is null then null
        else greatest(held.expires_at, excluded.expires_at)
    end
returning id, address, reason
