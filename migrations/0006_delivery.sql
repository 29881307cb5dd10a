-- Delivery: provider connections, send quotas, warm-up, pacing, delivery processes, and what the sandbox captured.

-- A tenant's own accounts with providers. The default connection carries the tenant's mail; without one the platform's relay does.
create table provider_connections (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    provider text not null check (provider in ('smtp', 'ses', 'postmark', 'sendgrid', 'mailgun', 'resend')),
    name text not null,
    settings jsonb not null default '{}',       -- region, domain, stream …: nothing secret
    secret bytea not null,                      -- sealed by the vault, purpose 'provider'
    -- How the connection proves that an event is its provider's. SendGrid: the public key; Mailgun, Resend: the signing key;
    -- Postmark: `user:password`. Several, one per line: any of them counts, so that they can be changed without losing events.
    hook_secret bytea,                          -- sealed by the vault, purpose 'provider_hook'
    has_hook_secret boolean not null generated always as (hook_secret is not null) stored,
    hook_topics text[] not null default '{}',   -- SES: the SNS topics whose messages count
    status text not null default 'active' check (status in ('active', 'disabled')),
    is_default boolean not null default false,
    -- Takes over, in this order, while the circuits of those before it are open. Null: never.
    fallback_rank smallint check (fallback_rank > 0),
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    -- Of what mail is sent with: delivery opens the connection again when it changes, and not for another name or place in the order.
    version uuid not null generated always as (md5(id::text || settings::text || encode(secret, 'hex'))::uuid) stored,
    primary key (tenant_id, id),
    unique (tenant_id, name),
    constraint provider_connections_one_place check (not is_default or fallback_rank is null)
);
create unique index provider_connections_one_default on provider_connections (tenant_id) where is_default;
create unique index provider_connections_fallbacks on provider_connections (tenant_id, fallback_rank) where fallback_rank is not null;
create index provider_connections_by_id on provider_connections (id);
create index provider_connections_newest on provider_connections (tenant_id, created_at desc, id desc);
select enable_row_security('provider_connections');
-- The ingress writes secrets and cannot read them.
revoke all on provider_connections from postrider_ingress;
grant select (tenant_id, id, provider, name, settings, has_hook_secret, hook_topics, status, is_default, fallback_rank, created_at, updated_at),
    insert (tenant_id, id, provider, name, settings, secret),
    update (name, settings, secret, hook_secret, hook_topics, status, is_default, fallback_rank, updated_at), delete
    on provider_connections to postrider_ingress;
-- The active connections that carry their tenants' mail, or take over.
create view own_routes with (security_invoker = true) as
select tenant_id, id, fallback_rank, version from provider_connections
where (is_default or fallback_rank is not null) and status = 'active';
grant select on own_routes to postrider_stages;
-- Connections that take over from others. Of a tenant with one, mail with an unknown outcome is not tried again.
create view fallback_connections with (security_invoker = true) as
select tenant_id, id from provider_connections where fallback_rank is not null and status = 'active';
grant select on fallback_connections to postrider_stages;

-- How a tenant's connection served last, as the delivery process saw it that reported last. Reported when a circuit opens or closes, and
-- at most every minute while the connection serves.
create table connection_health (
    tenant_id uuid not null,
    connection_id uuid not null,
    open_until timestamptz,                     -- the circuit is open until then; null: closed
    error_class text,                           -- of the last failure: a class of the engine, never the provider's text
    failed_at timestamptz,
    served_at timestamptz,
    primary key (tenant_id, connection_id),
    constraint connection_health_connection foreign key (tenant_id, connection_id)
        references provider_connections (tenant_id, id) on delete cascade
) with (fillfactor = 70);
select enable_row_security('connection_health');
revoke insert, update, delete on connection_health from postrider_ingress;

-- Checks of connections: the ingress asks, and a delivery process answers with what the provider said, because the ingress cannot read the
-- secret. One row for each connection that was ever checked.
create table connection_checks (
    tenant_id uuid not null,
    connection_id uuid not null,
    asked_at timestamptz not null default now(),
    taken_at timestamptz,                       -- by the process that pings
    answered_at timestamptz,                    -- null: the answer is owed
    error_code text,                            -- null: the provider takes the credentials; a code of the engine, never the provider's text
    latency_ms integer,
    primary key (tenant_id, connection_id),
    constraint connection_checks_connection foreign key (tenant_id, connection_id)
        references provider_connections (tenant_id, id) on delete cascade
);
create index connection_checks_owed on connection_checks (asked_at) where answered_at is null;
select enable_row_security('connection_checks');
revoke delete on connection_checks from postrider_ingress;

-- What the ingress needs of one connection to check an event before it knows the tenant. The role cannot read the table: the
-- credentials that mail is sent with stay hidden from it.
create function hook_connection(asked uuid)
returns table (tenant_id uuid, provider text, hook_secret bytea, hook_topics text[])
language sql stable security definer set search_path from current
as $$ select c.tenant_id, c.provider, c.hook_secret, c.hook_topics from provider_connections c where c.id = asked $$;
revoke execute on function hook_connection(uuid) from public;
grant execute on function hook_connection(uuid) to postrider_ingress;

-- How the platform's own providers last answered the delivery stage: one row each, renewed with every ping.
create table provider_pings (
    provider text primary key,                  -- smtp, ses, postmark, sendgrid, mailgun, resend: the platform's own connection
    ok boolean not null,
    error_code text,                            -- a code of the engine, never the provider's text
    latency_ms integer,
    pinged_at timestamptz not null default now(),
    ok_at timestamptz                           -- the last time it answered
);
grant select on provider_pings to postrider_ingress;
grant select, insert, update, delete on provider_pings to postrider_stages;

-- Send quotas ----------------------------------------------------------------------------------------------------------------

-- Limits set for one tenant. Null: the setting's; 0: no limit.
create table send_limits (
    tenant_id uuid primary key references tenants (id),
    monthly bigint check (monthly >= 0),
    daily bigint check (daily >= 0)
);
select enable_row_security('send_limits');
revoke insert, update, delete on send_limits from postrider_ingress;

-- Mails sent, by UTC day: sends that passed their first fence and were not given back. `shard` keeps the processes of a tenant
-- without a limit out of each other's way; a tenant with one is serialised by a lock on its row in `tenants`.
create table send_usage (
    tenant_id uuid not null references tenants (id),
    day date not null,
    shard smallint not null,
    used bigint not null,
    primary key (tenant_id, day, shard)
) with (fillfactor = 50);
select enable_row_security('send_usage');
revoke insert, update, delete on send_usage from postrider_ingress;

-- Warm-up and pacing ---------------------------------------------------------------------------------------------------------

-- A sending domain in warm-up: on each day on which it sends, it may send a number of mails that grows from day to day. Without a
-- row, or off, there is no limit.
create table domain_warmups (
    tenant_id uuid not null,
    domain_id uuid not null,
    is_on boolean not null default true,
    caps bigint[] check (cardinality(caps) between 1 and 365 and 0 < all (caps)),   -- null: the plan of the program
    primary key (tenant_id, domain_id),
    constraint domain_warmups_domain foreign key (tenant_id, domain_id) references domains (tenant_id, id) on delete cascade
);
select enable_row_security('domain_warmups');
revoke update, delete on domain_warmups from postrider_ingress;

-- How many mails such a domain has sent, by UTC day, counted at the first fence as in `send_usage`. The row in domain_warmups is
-- locked while a day's use is read and written, so the number is exact over all processes.
create table warmup_usage (
    tenant_id uuid not null,
    domain_id uuid not null,
    day date not null,
    used bigint not null,
    primary key (tenant_id, domain_id, day),
    constraint warmup_usage_domain foreign key (tenant_id, domain_id) references domains (tenant_id, id) on delete cascade
) with (fillfactor = 50);
select enable_row_security('warmup_usage');
revoke insert, update, delete on warmup_usage from postrider_ingress;

-- Throttle keys with a reduced rate: from one sending domain to one receiver (a recipient domain, or the name of a large operator's
-- family of domains). Processes share their findings here.
create table paces (
    tenant_id uuid not null references tenants (id),
    sending_domain text not null,
    receiver text not null,
    rate double precision not null check (rate > 0),        -- mails a second, of each process
    threshold double precision not null,                    -- below this the rate is raised by doubling
    cut_at timestamptz not null,
    throttled_since timestamptz not null,
    good_at timestamptz,                                    -- when the receiver last accepted a mail since
    updated_at timestamptz not null default clock_timestamp(),
    primary key (tenant_id, sending_domain, receiver)
) with (fillfactor = 70);
create index paces_by_age on paces (updated_at);
select enable_row_security('paces');
revoke insert, update, delete on paces from postrider_ingress;
-- How long a rate is in force that is not renewed.
create function pace_life() returns interval language sql immutable parallel safe as $$ select interval '1 hour' $$;
-- The rates in force. Served by paces_by_age, or by the key.
create view live_paces with (security_invoker = true) as
select * from paces where updated_at > now() - pace_life();
grant select on live_paces to postrider_ingress, postrider_stages;

-- Processes and the sandbox --------------------------------------------------------------------------------------------------

-- Delivery processes that are alive. Each renews its row every few seconds; the token of every fence it makes lies between
-- `first_token` and `last_token`. So the sends of a dead process are known by their tokens, and need not wait for a lease to end.
create table delivery_sessions (
    first_token uuid primary key,
    last_token uuid not null,
    seen_at timestamptz not null default clock_timestamp()
);
grant select, insert, update, delete on delivery_sessions to postrider_stages;

-- Mail that the capture provider took for sandbox tenants: the newest 500 of each tenant, for seven days, each cut to 256 KB.
create table captured_mails (
    tenant_id uuid not null references tenants (id),
    send_id uuid not null,
    source bytea not null,
    is_cut boolean not null,
    captured_at timestamptz not null default now(),
    primary key (tenant_id, send_id)
);
create index captured_mails_newest on captured_mails (tenant_id, captured_at desc, send_id desc);
create index captured_mails_by_age on captured_mails (captured_at);
select enable_row_security('captured_mails');
revoke insert, update on captured_mails from postrider_ingress;
