-- The one statement that writes suppressions. $1 tenants, $2 ids, $3 addresses, $4 reasons, $5 scopes, $6 sources, $7 notes,
-- $8 sends, $9 ends. Each key once, in key order, so that two writers cannot deadlock. A suppression in force is never
-- weakened: the wider scope and the later end win, and its source stays unless the recipient acts: only the recipient can lift the
-- recipient's own opt-out. An expired one starts anew, under its old id: by the time of this statement it is new, as one that was inserted, and
-- one that an earlier statement of the transaction wrote is not.
insert into suppressions as existing (tenant_id, id, address, reason, scope, source, note, send_id, created_at, expires_at)
select new.tenant_id, new.id, new.address, new.reason, new.scope, new.source, new.note, new.send_id, statement_timestamp(), new.expires_at
from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::uuid[], $9::timestamptz[])
    as new (tenant_id, id, address, reason, scope, source, note, send_id, expires_at)
on conflict (tenant_id, address, reason) do update set
    scope = case
        when existing.expires_at <= now() then excluded.scope
        when 'all' in (existing.scope, excluded.scope) then 'all'
        else 'marketing'
    end,
    source = case when existing.expires_at <= now() or excluded.source = 'recipient' then excluded.source else existing.source end,
    send_id = case
        when existing.expires_at <= now() or excluded.source = 'recipient' then excluded.send_id
        else coalesce(existing.send_id, excluded.send_id)
    end,
    created_at = case when existing.expires_at <= now() then excluded.created_at else existing.created_at end,
    note = coalesce(excluded.note, existing.note),
    expires_at = case
        when existing.expires_at <= now() then excluded.expires_at
        when existing.expires_at is null or excluded.expires_at is null then null
        else greatest(existing.expires_at, excluded.expires_at)
    end
returning tenant_id, id, address, reason, created_at <> statement_timestamp() as "already_existed!"
