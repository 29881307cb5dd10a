-- Domains, senders, templates and immutable contents.

create table domains (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    environment text not null default 'production' check (environment in ('production', 'sandbox')), -- of its tenant
    domain text not null,                       -- canonical, A-labels
    status text not null default 'pending' check (status in ('pending', 'verified', 'degraded', 'failed', 'suspended')),
    selector text not null,
    dkim_private bytea not null,                -- PKCS#8, encrypted under the master key
    dkim_public text not null,                  -- base64, for the TXT record
    ownership_token text not null,
    records jsonb not null default '[]',        -- what the last check saw, per record
    verified_at timestamptz,
    last_checked_at timestamptz,
    degraded_since timestamptz,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (tenant_id, id),
    unique (tenant_id, domain)
);
-- A pending claim does not lock the name; a proven one does. In the sandbox nothing is proven, so nothing is locked.
create unique index domains_proven_once on domains (domain)
    where status in ('verified', 'degraded', 'suspended') and environment = 'production';
create index domains_newest on domains (tenant_id, created_at desc, id desc);

create table senders (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    domain_id uuid not null,
    email text not null,
    name text not null,
    reply_to text,
    physical_address text,
    status text not null default 'active' check (status in ('active', 'pending_domain', 'disabled')),
    is_default boolean not null default false,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (tenant_id, id),
    unique (tenant_id, email),
    foreign key (tenant_id, domain_id) references domains (tenant_id, id)
);
create unique index senders_one_default on senders (tenant_id) where is_default;
create index senders_newest on senders (tenant_id, created_at desc, id desc);

-- What is rendered. Never changed: a template version, a campaign's own body, each is one row; batches pin it.
create table contents (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    kind text not null check (kind in ('marketing', 'transactional', 'sequence')),
    subject text not null,
    preheader text,
    body_html text not null,
    body_text text,
    variables text[] not null default '{}',
    created_at timestamptz not null default now(),
    primary key (tenant_id, id)
);

create table templates (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    name text not null,
    template_type text not null check (template_type in ('marketing', 'transactional', 'sequence')),
    status text not null check (status in ('draft', 'active', 'archived')),
    version integer not null,                   -- the current one
    content_id uuid not null,                   -- of the current version
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (tenant_id, id),
    foreign key (tenant_id, content_id) references contents (tenant_id, id)
);
create index templates_newest on templates (tenant_id, created_at desc, id desc);

create table template_versions (
    tenant_id uuid not null,
    template_id uuid not null,
    version integer not null,
    content_id uuid not null,
    created_at timestamptz not null default now(),
    primary key (tenant_id, template_id, version),
    foreign key (tenant_id, template_id) references templates (tenant_id, id),
    foreign key (tenant_id, content_id) references contents (tenant_id, id)
);

-- Compiled messages by content hash; written by rendering, cached by delivery.
create table skeletons (
    tenant_id uuid not null references tenants (id),
    id text not null,
    body jsonb not null,
    created_at timestamptz not null default now(),
    primary key (tenant_id, id)
);
