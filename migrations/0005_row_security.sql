-- The second wall: the ingress role sees the rows of `app.tenant` only. `current_setting` answers '' after a
-- transaction-local value ends, hence the nullif: no tenant set, no row seen.
create function app_tenant() returns uuid
language sql stable parallel safe
as $$ select nullif(current_setting('app.tenant', true), '')::uuid $$;

do $$
declare t text;
begin
    foreach t in array array[
        'contacts', 'audiences', 'audience_members', 'fields', 'suppressions', 'imports', 'domains', 'senders', 'contents',
        'templates', 'template_versions', 'skeletons', 'requests', 'campaigns', 'batches', 'sends', 'events', 'renditions', 'rollups'
    ] loop
        execute format('alter table %I enable row level security', t);
        execute format('alter table %I force row level security', t);
        execute format(
            'create policy tenant_wall on %I to postrider_ingress using (tenant_id = (select app_tenant())) with check (tenant_id = (select app_tenant()))', t);
        execute format('create policy all_tenants on %I to postrider_stages using (true) with check (true)', t);
        -- FORCE binds the owner too; migrations and the one security-definer function below need their way in.
        execute format('create policy owner_migrates on %I to %I using (true) with check (true)', t, current_user);
        execute format('grant select, insert, update, delete on %I to postrider_ingress, postrider_stages', t);
    end loop;
    -- The migrating login may take either role, so that one login can serve a small installation.
    if not pg_has_role(current_user, 'postrider_ingress', 'member') then
        execute format('grant postrider_ingress, postrider_stages to %I', current_user);
    end if;
    -- Looked up before the tenant is known; no row security, least privilege instead.
    foreach t in array array['nonces', 'rate_windows', 'idempotency_keys'] loop
        execute format('grant select, insert, update, delete on %I to postrider_ingress, postrider_stages', t);
    end loop;
end $$;
grant select, insert, update on tenants, tenant_links to postrider_ingress;
grant select, insert, update, delete on tenants, tenant_links to postrider_stages;
grant select on api_keys to postrider_ingress;
grant update (last_used_on) on api_keys to postrider_ingress;
grant select, insert, update, delete on api_keys to postrider_stages;
grant insert on audit_log to postrider_ingress;
grant select, insert on audit_log to postrider_stages;
grant execute on function standings(uuid, uuid[]), app_tenant() to postrider_ingress, postrider_stages;
revoke execute on function ensure_partitions(integer) from public;
grant execute on function ensure_partitions(integer) to postrider_stages;

-- Whether the exclusive owner of a proven domain is another tenant: the one question that must look over the wall.
create function domain_proven_elsewhere(name text, asking uuid) returns boolean
language sql stable security definer set search_path from current
as $$
    select exists (
        select from domains d
        where d.domain = name and d.tenant_id <> asking and d.environment = 'production'
          and d.status in ('verified', 'degraded', 'suspended')
          and exists (select from tenants t where t.id = asking and t.environment = 'production'))
$$;
revoke execute on function domain_proven_elsewhere(text, uuid) from public;
grant execute on function domain_proven_elsewhere(text, uuid) to postrider_ingress, postrider_stages;
