-- How often the secret of a product's calls (`call_product_webhook`) was rotated. The secret itself is derived: from the master key,
-- the tenant, the product and this number. No row: never.
create table call_secrets (
    tenant_id uuid not null references tenants (id),
    product text not null,
    generation integer not null default 0 check (generation >= 0),
    rotated_at timestamptz not null default now(),
    primary key (tenant_id, product)
);
select wall_off('call_secrets');
