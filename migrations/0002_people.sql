-- Contacts, lists, tags, fields, suppressions, imports.

create table contacts (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    address text not null,                      -- canonical; `erased:<keyed hash>` after an erasure
    first_name text,
    last_name text,
    title text,
    phone text,
    company text,
    dot_number bigint,
    timezone text,
    locale text,
    lifecycle_stage text,
    fields jsonb not null default '{}',
    status text not null default 'active' check (status in ('active', 'archived', 'erased')),
    marketing_status text not null default 'subscribed' check (marketing_status in ('subscribed', 'unsubscribed', 'pending')),
    source text,
    consent_basis text,
    consent_at timestamptz,
    consent_source text,
    consent_description text,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (tenant_id, id),
    unique (tenant_id, address)
);
create index contacts_newest on contacts (tenant_id, created_at desc, id desc);
create index contacts_by_dot_number on contacts (tenant_id, dot_number) where dot_number is not null;

-- Static audiences: lists and tags.
create table audiences (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    kind text not null check (kind in ('list', 'tag')),
    name text not null,
    description text,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (tenant_id, id),
    unique (tenant_id, kind, name)
);
create index audiences_newest on audiences (tenant_id, created_at desc, id desc);

create table audience_members (
    tenant_id uuid not null,
    audience_id uuid not null,
    contact_id uuid not null,
    added_at timestamptz not null default now(),
    primary key (tenant_id, audience_id, contact_id),
    foreign key (tenant_id, audience_id) references audiences (tenant_id, id),
    foreign key (tenant_id, contact_id) references contacts (tenant_id, id)
);
create index audience_members_by_contact on audience_members (tenant_id, contact_id);

create table fields (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    key text not null check (key ~ '^[a-z][a-z0-9_]{0,49}$'),
    label text not null,
    type text not null check (type in ('string', 'number', 'boolean', 'date', 'datetime', 'string_list')),
    fallback text,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (tenant_id, id),
    unique (tenant_id, key)
);

-- Outlives the contact: keyed by the canonical address. Several reasons may hold at once; each is lifted on its own.
-- Writers lock the address's contact row first (see fence in delivery): a fence and a suppression cannot pass each other.
create table suppressions (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    address text not null,
    reason text not null check (reason in ('hard_bounce', 'complaint', 'unsubscribe', 'manual', 'invalid', 'import')),
    scope text not null check (scope in ('all', 'marketing')),
    source text not null,                       -- api, import, recipient, delivery, …
    send_id uuid,
    note text,
    created_at timestamptz not null default now(),
    expires_at timestamptz,
    primary key (tenant_id, address, reason),
    unique (tenant_id, id)
);
create index suppressions_newest on suppressions (tenant_id, created_at desc, id desc);

create table imports (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    name text,
    operation text not null,
    status text not null check (status in ('completed', 'completed_with_errors', 'failed')),
    source_slug text not null,
    summary jsonb not null,                     -- counts, ignored columns, first errors
    duration_ms integer not null,
    created_at timestamptz not null default now(),
    primary key (tenant_id, id)
);
create index imports_newest on imports (tenant_id, created_at desc, id desc);

-- What is known of these contacts, for the compliance gate. One definition for compliance, claim and fence.
-- Run it in a statement of its own after locking: READ COMMITTED takes its snapshot when the statement starts.
-- Written so that the only plan is two look-ups by primary key per contact (`offset 0` keeps the planner from turning them
-- into joins). With statistics missing, as after a first import, the planner would read all contacts of the tenant for each
-- batch: measured at 69 us of CPU per recipient instead of 8.
create function standings(of_tenant uuid, of_contacts uuid[])
returns table (
    contact_id uuid, address text, contact_active boolean, marketing_status text, hard_bounced boolean, complained boolean,
    unsubscribed boolean, invalid boolean, suppressed_all boolean, suppressed_marketing boolean
)
language sql stable parallel safe
as $$
    select c.id, c.address, c.status = 'active', c.marketing_status,
           s.held & 1 <> 0, s.held & 2 <> 0, s.held & 8 <> 0, s.held & 4 <> 0, s.held & 16 <> 0, s.held & 32 <> 0
    from unnest(of_contacts) as w (id)
    cross join lateral (
        select c.id, c.address, c.status, c.marketing_status
        from contacts c
        where c.tenant_id = of_tenant and c.id = w.id
        offset 0
    ) c
    cross join lateral (
        select coalesce(bit_or(case s.reason
                      when 'hard_bounce' then 1
                      when 'complaint' then 2
                      when 'invalid' then 4
                      when 'unsubscribe' then 8
                      else case s.scope when 'all' then 16 else 32 end
                  end), 0) as held
        from suppressions s
        where s.tenant_id = of_tenant and s.address = c.address and (s.expires_at is null or s.expires_at > now())
    ) s
$$;
