-- Domains, senders, templates and immutable contents.

create table domains (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    environment text not null default 'production' check (environment in ('production', 'sandbox')), -- of its tenant
    domain text not null,                       -- canonical, A-labels
    status text not null default 'pending' check (status in ('pending', 'verified', 'degraded', 'failed', 'suspended')),
    -- What a suspended domain was before, and is again when the operator releases it.
    suspended_from text check (suspended_from in ('pending', 'verified', 'degraded', 'failed')),
    selector text not null,
    dkim_private bytea not null,                -- PKCS#8, encrypted under the master key
    dkim_public text not null,                  -- base64, for the TXT record
    -- A second DKIM key: Ed25519 (RFC 8463) beside RSA, under a selector of its own. Advised, not required: mail is signed with it
    -- too once the last check has found it published, so that no receiver looks for a key that is not there.
    second_selector text,
    second_private bytea,                       -- PKCS#8, encrypted as dkim_private is
    second_public text,
    second_published boolean not null default false,
    ownership_token text not null,
    records jsonb not null default '[]',        -- what the last check saw, per record
    verified_at timestamptz,
    last_checked_at timestamptz,
    next_check_at timestamptz default now() + interval '1 hour', -- null: never (the sandbox, a claim given up long ago)
    checks_from timestamptz not null default now(), -- claimed, or when "verify" was last called: checks that fail end some time after it
    degraded_since timestamptz,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (tenant_id, id),
    unique (tenant_id, domain),
    constraint domains_second_key_is_whole check (num_nulls(second_selector, second_private, second_public) in (0, 3)),
    constraint domains_published_second_key check (not second_published or second_selector is not null),
    constraint domains_suspended_from_a_status check (suspended_from is null or status = 'suspended')
);
-- A claim that was never proven does not lock the name; a proven one does, suspended or not. In the sandbox nothing is proven, so
-- nothing is locked.
create unique index domains_proven_once on domains (domain)
    where coalesce(suspended_from, status) in ('verified', 'degraded') and environment = 'production';
-- The tenant that has proven a domain. The ingress asks before it serves a link on the domain's tracking host: it does not know the tenant,
-- so it sees no row of the table.
create function tenant_of_proven_domain(asked text) returns uuid
language sql stable security definer set search_path from current
as $$
    select tenant_id from domains
    where domain = asked and coalesce(suspended_from, status) in ('verified', 'degraded') and environment = 'production'
$$;
revoke execute on function tenant_of_proven_domain(text) from public;
grant execute on function tenant_of_proven_domain(text) to postrider_ingress;
create index domains_newest on domains (tenant_id, created_at desc, id desc);
create index domains_to_check on domains (next_check_at) where next_check_at is not null;
select enable_row_security('domains');

alter table tenants add constraint tenants_tracking_domain
    foreign key (id, tracking_domain_id) references domains (tenant_id, id);

-- A domain's environment is that of its tenant, whatever the writer says: a sandbox tenant must never lock a name in production.
create function domain_takes_its_tenants_environment() returns trigger
language plpgsql
as $$
begin
    select environment into strict new.environment from tenants where id = new.tenant_id;
    if new.environment = 'sandbox' then
        new.next_check_at := null;
    end if;
    return new;
end $$;
create trigger domain_environment before insert on domains
    for each row execute function domain_takes_its_tenants_environment();

-- Whether a name belongs to another tenant: another tenant has proven it or a domain above it. Mail of a name below a proven
-- domain would pass for its owner's. A security definer, because it must read past row-level security.
create function domain_proven_elsewhere(name text, asking uuid) returns boolean
language sql stable security definer set search_path from current
as $$
    select exists (
        select from generate_series(1, cardinality(string_to_array(name, '.')) - 1) as above (skipped)
        cross join lateral (
            select d.tenant_id from domains d
            where d.domain = array_to_string((string_to_array(name, '.'))[above.skipped:], '.') and d.environment = 'production'
              and coalesce(d.suspended_from, d.status) in ('verified', 'degraded')
            offset 0
        ) d
        where d.tenant_id <> asking
          and exists (select from tenants t where t.id = asking and t.environment = 'production'))
$$;
revoke execute on function domain_proven_elsewhere(text, uuid) from public;
grant execute on function domain_proven_elsewhere(text, uuid) to postrider_ingress;

-- Takes domains whose records are due to be checked again, each for ten minutes: several ingress processes share the work, and a
-- process that dies loses none. Mail depends on the proven ones: they go before claims, which may be many below a name whose servers
-- do not answer. It reads past row-level security and answers ids only; the check itself runs as the tenant.
create function take_domains_to_check(at_most integer) returns table (tenant_id uuid, id uuid)
language sql security definer set search_path from current
as $$
    update domains d set next_check_at = now() + interval '10 minutes'
    from (select e.tenant_id, e.id from domains e
          where e.next_check_at <= now()
          order by e.status in ('verified', 'degraded') desc, e.next_check_at limit at_most
          for update skip locked) as due
    where d.tenant_id = due.tenant_id and d.id = due.id
    returning d.tenant_id, d.id
$$;
revoke execute on function take_domains_to_check(integer) from public;
grant execute on function take_domains_to_check(integer) to postrider_ingress;

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
select enable_row_security('senders');

-- The postal address in mail of a sender: its own, else the tenant's. A blank one is none.
create function postal_address(of_sender text, of_tenant text) returns text
language sql immutable parallel safe
as $$ select coalesce(nullif(btrim(of_sender, E' \t\r\n'), ''), nullif(btrim(of_tenant, E' \t\r\n'), '')) $$;
grant execute on function postal_address(text, text) to postrider_ingress, postrider_stages;

-- What is rendered. A template version, a campaign's own body and a one-off message are one row each; batches pin it. A row is never
-- changed, except by `empty_contents`.
create table contents (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    -- one_off: a body that was written for one message; rendered as it stands, without Liquid.
    kind text not null check (kind in ('marketing', 'transactional', 'sequence', 'one_off')),
    subject text not null,
    preheader text,
    body_html text not null,
    body_text text,
    variables text[] not null default '{}',
    created_at timestamptz not null default now(),
    primary key (tenant_id, id)
);
create index contents_to_empty on contents (tenant_id, id) where kind = 'one_off' and body_html <> '';
select enable_row_security('contents');

-- Empties contents of a tenant: one-off bodies that are old or erased with a contact, and what a draft no longer says. Answers which.
create function empty_contents(of_tenant uuid, emptied uuid[]) returns setof uuid
language sql volatile
as $$
    update contents c set subject = '', preheader = null, body_html = '', body_text = null, variables = '{}'
    where c.tenant_id = of_tenant and c.id = any (emptied)
    returning c.id
$$;
grant execute on function empty_contents(uuid, uuid[]) to postrider_ingress, postrider_stages;

-- The classification of transactional mail, by the kind of its content. Mail from a template of another type than transactional is marketing,
-- regardless of the request: opt-outs count, and it has the footer.
create function classification_of(content_kind text) returns text
language sql immutable parallel safe
as $$ select case when content_kind = 'transactional' then 'transactional' else 'marketing' end $$;
grant execute on function classification_of(text) to postrider_ingress, postrider_stages;

create table templates (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    name text not null,
    template_type text not null check (template_type in ('marketing', 'transactional', 'sequence')),
    status text not null check (status in ('draft', 'active', 'archived')),
    version integer not null,                   -- the current one
    content_id uuid not null,                   -- of the current version
    test_data jsonb not null default '[]',      -- named sample data for previews and tests
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (tenant_id, id),
    foreign key (tenant_id, content_id) references contents (tenant_id, id)
);
create index templates_newest on templates (tenant_id, created_at desc, id desc);
create index templates_unarchived on templates (tenant_id) where status <> 'archived';    -- a tenant may have so many
select enable_row_security('templates');

alter table tenants add constraint tenants_confirmation_template
    foreign key (id, confirmation_template_id) references templates (tenant_id, id);

create table template_versions (
    tenant_id uuid not null,
    template_id uuid not null,
    version integer not null,
    content_id uuid not null,
    -- What its author wrote, where the content has something else: the HTML and text before their snippets and layout were put in, the
    -- MJML that the HTML was made from, and the name of the layout.
    written_html text,
    written_text text,
    mjml text,
    layout text,
    created_at timestamptz not null default now(),
    primary key (tenant_id, template_id, version),
    foreign key (tenant_id, template_id) references templates (tenant_id, id),
    foreign key (tenant_id, content_id) references contents (tenant_id, id)
);
create index template_versions_by_content on template_versions (tenant_id, content_id);
select enable_row_security('template_versions');

-- True if one of these names is of the event that started a sequence: `event.…`, which other mail has not.
create function names_event(variables text[]) returns boolean
language sql immutable strict parallel safe
as $$ select exists (select from unnest(variables) name where starts_with(name, 'event.')) $$;
grant execute on function names_event(text[]) to postrider_ingress, postrider_stages;

-- The template version that a content is, for the record of a send: the first, where several have it. No row for a body of its own.
create function template_version_of(of_tenant uuid, of_content uuid) returns table (template_id uuid, version integer)
language sql stable parallel safe
as $$
    select v.template_id, v.version
    from template_versions v
    where v.tenant_id = of_tenant and v.content_id = of_content
    order by v.template_id, v.version
    limit 1
$$;
grant execute on function template_version_of(uuid, uuid) to postrider_ingress, postrider_stages;

-- Snippets, which bodies of templates and campaigns include by name, and layouts, which stand around one. A content holds their text since
-- it was made.
create table snippets (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    kind text not null check (kind in ('snippet', 'layout')),
    name text not null,                         -- for good: bodies say it
    version integer not null,                   -- the current one
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    deleted_at timestamptz,                     -- old contents still name it
    primary key (tenant_id, id)
);
create unique index snippets_by_name on snippets (tenant_id, name) where deleted_at is null;
create index snippets_newest on snippets (tenant_id, created_at desc, id desc) where deleted_at is null;
select enable_row_security('snippets');

create table snippet_versions (
    tenant_id uuid not null,
    snippet_id uuid not null,
    version integer not null,
    body_html text,
    mjml text,
    body_text text,
    mentions text[] not null default '{}',      -- names of snippets it may include
    created_at timestamptz not null default now(),
    primary key (tenant_id, snippet_id, version),
    foreign key (tenant_id, snippet_id) references snippets (tenant_id, id),
    constraint snippet_versions_one_body check (num_nonnulls(body_html, mjml) = 1)
);
select enable_row_security('snippet_versions');

-- Which snippets, in which versions, a content holds: that of a template's version, or of a campaign with a body of its own.
create table content_snippets (
    tenant_id uuid not null,
    content_id uuid not null,
    snippet_id uuid not null,
    snippet_version integer not null,
    primary key (tenant_id, content_id, snippet_id),
    foreign key (tenant_id, content_id) references contents (tenant_id, id),
    foreign key (tenant_id, snippet_id, snippet_version) references snippet_versions (tenant_id, snippet_id, version)
);
create index content_snippets_by_snippet on content_snippets (tenant_id, snippet_id, content_id);
select enable_row_security('content_snippets');

-- Compiled messages by content hash; written by rendering, cached by delivery.
create table skeletons (
    tenant_id uuid not null references tenants (id),
    id text not null,
    body jsonb not null,
    primary key (tenant_id, id)
);
select enable_row_security('skeletons');
