-- A tenant's own choices, and an operator's hold on a domain.

-- The domain whose tracking host (`link.<domain>`) the tenant's mail uses for links and pixel. Null: that of the sending domain.
alter table tenants add column tracking_domain_id uuid;
alter table tenants add constraint tenants_tracking_domain
    foreign key (id, tracking_domain_id) references domains (tenant_id, id);

-- What a suspended domain was before, and is again when the operator releases it.
alter table domains add column suspended_from text
    check (suspended_from in ('pending', 'verified', 'degraded', 'failed'));
alter table domains add constraint domains_suspended_from_a_status
    check (suspended_from is null or status = 'suspended');

-- Whether a name belongs to another tenant: another tenant has proven it or a domain above it. Mail of a name below a proven
-- domain would pass for its owner's.
create or replace function domain_proven_elsewhere(name text, asking uuid) returns boolean
language sql stable security definer set search_path from current
as $$
    select exists (
        select from generate_series(1, cardinality(string_to_array(name, '.')) - 1) as above (skipped)
        cross join lateral (
            select d.tenant_id from domains d
            where d.domain = array_to_string((string_to_array(name, '.'))[above.skipped:], '.') and d.environment = 'production'
              and d.status in ('verified', 'degraded', 'suspended')
            offset 0
        ) d
        where d.tenant_id <> asking
          and exists (select from tenants t where t.id = asking and t.environment = 'production'))
$$;

-- How a domain is warmed up goes with the domain.
alter table domain_warmups drop constraint domain_warmups_tenant_id_domain_id_fkey;
alter table domain_warmups add constraint domain_warmups_domain
    foreign key (tenant_id, domain_id) references domains (tenant_id, id) on delete cascade;
alter table warmup_usage drop constraint warmup_usage_tenant_id_domain_id_fkey;
alter table warmup_usage add constraint warmup_usage_domain
    foreign key (tenant_id, domain_id) references domains (tenant_id, id) on delete cascade;
