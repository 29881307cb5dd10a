-- Tenants, the credentials that act for them, and the tables the ingress needs before it knows the tenant. Also the roles and row-level security.
--
-- Processes connect with any login and `SET ROLE` to one of these two roles:
--   postrider_ingress  serves callers; row-level security confines every transaction to the tenant in `app.tenant`
--   postrider_stages   the stages and the command line; works for all tenants
-- Neither role owns a table, so row-level security binds both (the stages by an explicit policy).
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
-- The migrating login may take either role, so that one login can serve a small installation.
do $$
begin
    if not pg_has_role(current_user, 'postrider_ingress', 'member') then
        execute format('grant postrider_ingress, postrider_stages to %I', current_user);
    end if;
end $$;

-- The tenant of the transaction. `current_setting` answers '' after a transaction-local value has ended, hence the nullif: without
-- a tenant the ingress sees no row.
create function app_tenant() returns uuid
language sql stable parallel safe
as $$ select nullif(current_setting('app.tenant', true), '')::uuid $$;
grant execute on function app_tenant() to postrider_ingress, postrider_stages;

-- Row-level security for a table with a `tenant_id`: the ingress sees the rows of `app.tenant` only, the stages see all rows. Both
-- roles may read and write; a table revokes below its definition what a role does not need.
-- FORCE binds the owner too, so the owner has a policy: migrations and security-definer functions run as the owner.
create function enable_row_security(tenant_table regclass) returns void
language plpgsql
as $$
begin
    execute format('alter table %s enable row level security', tenant_table);
    execute format('alter table %s force row level security', tenant_table);
    execute format(
        'create policy tenant_isolation on %s to postrider_ingress using (tenant_id = (select app_tenant())) with check (tenant_id = (select app_tenant()))',
        tenant_table);
    execute format('create policy all_tenants on %s to postrider_stages using (true) with check (true)', tenant_table);
    execute format('create policy owner_migrates on %s to %I using (true) with check (true)', tenant_table, current_user);
    execute format('grant select, insert, update, delete on %s to postrider_ingress, postrider_stages', tenant_table);
end $$;
revoke execute on function enable_row_security(regclass) from public;

-- Tenants and their links, keys, nonces, rate counts and idempotency keys are looked up before the tenant is known. They have no
-- row-level security; the ingress has the least privileges instead.

create table tenants (
    id uuid primary key,
    environment text not null check (environment in ('production', 'sandbox')),
    org_name text,
    owner_email text not null,
    physical_address text,
    timezone text not null default 'UTC',
    tracking_domain_id uuid,                    -- whose tracking host (`link.<domain>`) links and pixels use; null: the sending domain's
    -- Kept for fewer days than the installation's settings say, never for more. Null: as the settings say.
    keep_requests_days integer check (keep_requests_days between 7 and 3650),
    keep_imports_days integer check (keep_imports_days between 1 and 3650),
    -- The frequency cap: so many marketing mails of campaigns and sequences to a contact in so many times 24 hours. Null: no cap.
    frequency_cap_messages integer check (frequency_cap_messages between 1 and 1000),
    frequency_cap_days integer check (frequency_cap_days between 1 and 90),
    -- Quiet hours: from one time of the day until another, over midnight if the second is the earlier one, by the clock of the contact's
    -- time zone or of the tenant's; for mail of these classifications. Null: none.
    quiet_from time,
    quiet_to time,
    quiet_by_contact boolean,
    quiet_for text[] check (quiet_for <@ array['marketing', 'operational', 'transactional'] and quiet_for <> '{}'),
    -- Double opt-in: the tenant's own mail (null: the engine's), and how often and how long it is asked for (null: as the settings say).
    confirmation_template_id uuid,
    confirmation_reminders integer check (confirmation_reminders between 0 and 3),
    confirmation_reminder_hours integer check (confirmation_reminder_hours between 1 and 720),
    confirmation_days integer check (confirmation_days between 1 and 90),
    -- The pages that recipients open: the tenant's own sentences, plain text; its logo, which only browsers fetch; its colours.
    unsubscribe_text text check (length(unsubscribe_text) <= 1000),
    preferences_text text check (length(preferences_text) <= 1000),
    logo_url text check (logo_url like 'https://%' and length(logo_url) <= 2048),
    button_color text check (button_color ~ '^#[0-9a-f]{6}$'),
    background_color text check (background_color ~ '^#[0-9a-f]{6}$'),
    status text not null default 'active' check (status in ('active', 'suspended')),
    -- Paused: requests are accepted, but no mail passes the fence until the tenant is resumed. The work of a paused tenant waits;
    -- the work of a suspended tenant is skipped.
    paused_at timestamptz,
    pause_actor text,
    pause_reason text,
    pauses tstzmultirange not null default '{}', -- those that are over: mail may have waited in them; see `launched_since`
    resuming boolean not null default false,       -- resumed; some of its batches were set aside and are not yet dispatched again
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    constraint tenants_frequency_cap_is_whole check (num_nulls(frequency_cap_messages, frequency_cap_days) in (0, 2)),
    constraint tenants_quiet_hours_are_whole check (num_nulls(quiet_from, quiet_to, quiet_by_contact, quiet_for) in (0, 4)),
    constraint tenants_quiet_hours_end check (quiet_from <> quiet_to),
    constraint tenants_resuming_not_paused check (not resuming or paused_at is null)
);
create index tenants_paused on tenants (paused_at) where paused_at is not null;
create index tenants_resuming on tenants (id) where resuming;
grant select, insert, update on tenants to postrider_ingress;
grant select, insert, update, delete on tenants to postrider_stages;

-- Since when mail may have been launched that left at this time or later, where only pauses of its tenant kept it. One that ended before
-- counts if later pauses fill the time since then.
create function launched_since(pauses tstzmultirange, sent_since timestamptz) returns timestamptz
language sql stable parallel safe
as $$
    select sent_since - coalesce(sum(p.ended_at - p.began_at), '0')
    from (
        select lower(p) as began_at, upper(p) as ended_at,
               coalesce(sum(upper(p) - lower(p)) over (order by upper(p) desc rows between unbounded preceding and 1 preceding), '0') as later
        from unnest(pauses) p
    ) p
    where p.ended_at >= sent_since - p.later
$$;

-- One link per (product, environment, the product's own tenant id). Several products may share one tenant.
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
grant select, insert, update on tenant_links to postrider_ingress;
grant select, insert, update, delete on tenant_links to postrider_stages;

create table api_keys (
    id uuid primary key,
    hash bytea not null unique check (octet_length(hash) = 32),
    prefix text not null,                       -- the first characters, to recognise a key in a list
    product text not null,
    environment text not null check (environment in ('production', 'sandbox')),
    scopes text[] not null,
    tenant_id uuid references tenants (id),     -- set: the key works for this tenant only
    label text,
    -- The first of the keys that replaced one another up to this one: a request repeated with the new key is a repeat.
    lineage uuid not null,
    -- The lineage with which it shares a rate limit: that of the key that made it by API, so that no key makes itself a fresh limit.
    rate_lineage uuid not null,
    -- The keys that asked for it by API. It ends when one of them is revoked; the key that replaces one of them takes its place here.
    made_by uuid[] not null default '{}',
    created_at timestamptz not null default now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_on date
);
create index api_keys_newest on api_keys (tenant_id, created_at desc, id desc);
create index api_keys_by_maker on api_keys using gin (made_by);
-- A key is looked up before its tenant is known, so the ingress reads and ends all keys. It makes keys for one tenant only: its own.
alter table api_keys enable row level security;
create policy keys_are_looked_up on api_keys for select to postrider_ingress using (true);
create policy keys_are_ended on api_keys for update to postrider_ingress using (true);
create policy keys_of_the_tenant on api_keys for insert to postrider_ingress with check (tenant_id = (select app_tenant()));
create policy all_tenants on api_keys to postrider_stages using (true) with check (true);
grant select, insert on api_keys to postrider_ingress;
grant update (last_used_on, expires_at, revoked_at, made_by) on api_keys to postrider_ingress;
grant select, insert, update, delete on api_keys to postrider_stages;

-- A nonce is accepted once per key. Rows are kept for more than ten minutes, twice the timestamp window, and then swept.
create table nonces (
    key_id uuid not null,
    nonce text not null,
    seen_at timestamptz not null default now(),
    primary key (key_id, nonce)
);
-- Not a summary of blocks: pages are used again, and a summary never narrows, so that each would seem to have old rows.
create index nonces_by_age on nonces (seen_at);
grant select, insert, update, delete on nonces to postrider_ingress, postrider_stages;

-- The rate limit of an API key or of an assistant approval is a sliding minute: requests are counted in buckets of two seconds, and
-- the buckets of the last minute are added up. One row per key, so that concurrent counters wait for each other and miss nothing.
-- Unlogged: a crash of Postgres forgives a minute.
create unlogged table rate_counts (
    key_id uuid primary key,                    -- the rate lineage of the API key, or the approval
    bucket bigint not null,                     -- the two seconds of the first count: seconds since 1970, halved
    counts integer[] not null,                  -- admitted in the last 31 buckets, the newest first
    allowed integer not null,                   -- per minute, as the last group of requests had it
    was integer not null default 0              -- the sum before the last group
) with (fillfactor = 50);
grant select, insert, update, delete on rate_counts to postrider_ingress, postrider_stages;

-- The row is inserted first and completed in the transaction of the effect.
create table idempotency_keys (
    key_id uuid not null,                       -- the lineage of the API key
    idempotency_key text not null,
    tenant_id uuid,                             -- of the request, whose erasures empty the answer; null: of none, or of several
    fingerprint bytea not null check (octet_length(fingerprint) = 32),
    status smallint,                            -- null: still running
    body bytea,                                 -- encrypted when it holds a secret
    -- Set when the answer waits for something outside the transaction: the id of what it waits for. The row has no status until
    -- the outcome is known; `locked_until` is the lease of the process that waits.
    waits_for uuid,
    created_at timestamptz not null default now(),
    locked_until timestamptz not null,
    primary key (key_id, idempotency_key)
);
create index idempotency_keys_by_age on idempotency_keys (created_at);
grant select, insert, update, delete on idempotency_keys to postrider_ingress, postrider_stages;

-- What callers, operators and the engine itself changed.
create table audit_log (
    id uuid primary key,
    tenant_id uuid,
    actor text not null,                        -- 'key:<id>' or 'cli'
    action text not null,
    subject text not null,
    detail jsonb not null default '{}',
    -- An operator's reason and what came of the action. Not in `detail`, which for some actions becomes an event for the tenant.
    reason text,
    outcome text,
    at timestamptz not null default now()
);
create index audit_log_by_tenant on audit_log (tenant_id, at desc, id desc);
create index audit_log_by_action on audit_log (tenant_id, action, at desc, id desc);
create index audit_log_newest on audit_log (at desc, id desc);
-- The ingress reads the entries of its tenant, without operators' reasons, and writes entries of its tenant and of none.
alter table audit_log enable row level security;
create policy entries_of_the_tenant on audit_log for select to postrider_ingress using (tenant_id = (select app_tenant()));
create policy entries_are_added on audit_log for insert to postrider_ingress with check (true);
create policy all_tenants on audit_log to postrider_stages using (true) with check (true);
grant select (id, tenant_id, actor, action, subject, detail, at), insert on audit_log to postrider_ingress;
grant select, insert, delete on audit_log to postrider_stages;

-- The calls of the API: the operation, what was answered and why, never what a call said. No row is about a person, so that an erasure has
-- nothing to do here.
create table request_log (
    tenant_id uuid not null,
    id uuid not null,
    product text not null,
    environment text not null check (environment in ('production', 'sandbox')),
    key_id uuid not null,                       -- the API key; of calls over the bus the constant id of the product there
    via text not null check (via in ('http', 'bus')),
    operation text not null,                    -- its name in the OpenAPI document
    status smallint not null,
    error text,                                 -- the code of a refusal
    field text,                                 -- where the first fault is: names of the API only
    replayed boolean not null,                  -- answered with what an earlier call with its idempotency key was answered
    request_id text,                            -- `X-Request-Id`; null of items of arrays on the bus
    duration_ms integer not null,
    at timestamptz not null,
    primary key (tenant_id, product, environment, at, id)
);
create index request_log_by_operation on request_log (tenant_id, product, operation, at);
create index request_log_by_key on request_log (tenant_id, key_id, at);
create index request_log_refused on request_log (tenant_id, product, at) where status >= 400;
-- By id, which says when the row was written: by `at` the planner would read a tenant's page in it, through the rows of all others.
create index request_log_by_age on request_log (id);
-- The ingress reads the calls of its tenant, and writes those of all: calls of many tenants are written at once.
alter table request_log enable row level security;
create policy calls_of_the_tenant on request_log for select to postrider_ingress using (tenant_id = (select app_tenant()));
create policy calls_are_added on request_log for insert to postrider_ingress with check (true);
create policy all_tenants on request_log to postrider_stages using (true) with check (true);
grant select, insert on request_log to postrider_ingress;
grant select, delete on request_log to postrider_stages;

-- The assistant endpoint: which assistants may ask, and what they proposed.

-- One approval binds one user and one client of an authorization server to one workspace: a tenant in its environment. It is
-- looked up before the tenant is known; the ingress may only read it.
create table assistant_approvals (
    id uuid primary key,
    issuer text not null,
    subject text not null,                      -- the user, as the issuer's tokens name it (`sub`)
    client_id text not null,
    tenant_id uuid not null references tenants (id),
    environment text not null check (environment in ('production', 'sandbox')),
    may_draft boolean not null default false,   -- the separate consent that saving draft proposals needs
    label text,
    created_at timestamptz not null default now(),
    expires_at timestamptz,
    revoked_at timestamptz
);
-- A user and a client have one workspace at a time: a token never has to choose.
create unique index assistant_approvals_live on assistant_approvals (issuer, subject, client_id) where revoked_at is null;
grant select on assistant_approvals to postrider_ingress;
grant select, insert, update, delete on assistant_approvals to postrider_stages;

-- What an assistant proposed, for a person to read. Nothing executes a row of this table: no campaign or template points here.
create table draft_proposals (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    approval_id uuid not null references assistant_approvals (id),
    title text not null,
    campaign_goal text,
    subject text,
    preheader text,
    body text,
    audience text,                              -- the intended recipients, in words
    notes text,
    status text not null default 'open' check (status in ('open', 'closed')),
    created_at timestamptz not null default now(),
    closed_at timestamptz,
    primary key (tenant_id, id)
);
create index draft_proposals_newest on draft_proposals (tenant_id, created_at desc, id desc);
create index draft_proposals_open on draft_proposals (tenant_id) where status = 'open';
select enable_row_security('draft_proposals');
-- The ingress adds proposals and counts the open ones; it neither reads nor changes their text.
revoke select, update, delete on draft_proposals from postrider_ingress;
grant select (tenant_id, status) on draft_proposals to postrider_ingress;
