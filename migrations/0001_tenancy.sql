-- Tenancy, credentials and what the ingress needs before it knows the tenant.
--
-- Roles: processes connect with any login and `SET ROLE` to one of these two.
--   postrider_ingress  serves callers; row security confines every transaction to `app.tenant`
--   postrider_stages   the stages and the command line; works for all tenants
-- Neither owns a table, so row security binds both (the stages by an explicit policy).
do $$
begin
    if not exists (select from pg_roles where rolname = 'postrider_ingress') then
        create role postrider_ingress nologin;
    end if;
exception when duplicate_object or unique_violation then null;
end $$;
do $$
begin
    if not exists (select from pg_roles where rolname = 'postrider_stages') then
        create role postrider_stages nologin;
    end if;
exception when duplicate_object or unique_violation then null;
end $$;

create table tenants (
    id uuid primary key,
    environment text not null check (environment in ('production', 'sandbox')),
    org_name text,
    owner_email text not null,
    physical_address text,
    timezone text not null default 'UTC',
    status text not null default 'active' check (status in ('active', 'suspended')),
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);

-- One link per (product, environment, the product's own tenant id); several products may share an engine tenant.
create table tenant_links (
    product text not null,
    environment text not null check (environment in ('production', 'sandbox')),
    product_tenant_id text not null,
    tenant_id uuid not null references tenants (id),
    owner_email text not null,
    org_name text,
    producer_name text,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (product, environment, product_tenant_id)
);
create index tenant_links_by_tenant on tenant_links (tenant_id);

create table api_keys (
    id uuid primary key,
    hash bytea not null unique check (octet_length(hash) = 32),
    prefix text not null,                       -- the first characters, to recognise a key in a list
    product text not null,
    environment text not null check (environment in ('production', 'sandbox')),
    scopes text[] not null,
    tenant_id uuid references tenants (id),     -- set: the key works for this tenant only
    label text,
    created_at timestamptz not null default now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_on date
);

-- A nonce is burnt once per key. Kept for over ten minutes: twice the timestamp window. Swept.
create table nonces (
    key_id uuid not null,
    nonce text not null,
    seen_at timestamptz not null default now(),
    primary key (key_id, nonce)
);
create index nonces_by_age on nonces (seen_at);

-- Fixed one-minute windows per key; holds over several ingress processes. Unlogged: a crash of Postgres forgives a minute.
create unlogged table rate_windows (
    key_id uuid not null,
    window_start timestamptz not null,
    used integer not null,
    primary key (key_id, window_start)
);

-- The row is inserted first and completed in the transaction of the effect.
create table idempotency_keys (
    key_id uuid not null,
    idempotency_key text not null,
    fingerprint bytea not null check (octet_length(fingerprint) = 32),
    status smallint,                            -- null: still running
    body bytea,                                 -- encrypted when it holds a secret
    created_at timestamptz not null default now(),
    locked_until timestamptz not null,
    primary key (key_id, idempotency_key)
);
create index idempotency_keys_by_age on idempotency_keys (created_at);

create table audit_log (
    id uuid primary key,
    tenant_id uuid,
    actor text not null,                        -- 'key:<id>' or 'cli'
    action text not null,
    subject text not null,
    detail jsonb not null default '{}',
    at timestamptz not null default now()
);
create index audit_log_by_tenant on audit_log (tenant_id, at desc);
