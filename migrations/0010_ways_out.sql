-- Ways out: send quotas, tenants' own provider connections, what the sandbox captured.

-- Limits set for one tenant. Null: the setting's; 0: no limit.
create table send_limits (
    tenant_id uuid primary key references tenants (id),
    monthly bigint check (monthly >= 0),
    daily bigint check (daily >= 0),
    updated_at timestamptz not null default now()
);
select wall_off('send_limits');
revoke insert, update, delete on send_limits from postrider_ingress;

-- Mails handed over, by UTC day: sends that passed their first fence and were not given back. `shard` keeps the processes of a
-- tenant without a limit out of each other's way; a tenant with one is serialised by a lock on its row in `tenants`.
create table send_usage (
    tenant_id uuid not null references tenants (id),
    day date not null,
    shard smallint not null,
    used bigint not null,
    primary key (tenant_id, day, shard)
) with (fillfactor = 50);
select wall_off('send_usage');
revoke insert, update, delete on send_usage from postrider_ingress;

-- Which way out took a send, and the id it gave it: for SMTP our Message-ID.
alter table sends add column provider text, add column provider_message_id text;

-- A tenant's own accounts with providers. The default one carries its mail; without one the platform's relay does.
create table provider_connections (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    provider text not null check (provider in ('smtp', 'ses', 'postmark', 'sendgrid', 'mailgun', 'resend')),
    name text not null,
    settings jsonb not null default '{}',       -- region, domain, stream …: nothing secret
    secret bytea not null,                      -- sealed by the vault, purpose 'provider'
    status text not null default 'active' check (status in ('active', 'disabled')),
    is_default boolean not null default false,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (tenant_id, id),
    unique (tenant_id, name)
);
create unique index provider_connections_one_default on provider_connections (tenant_id) where is_default;
select wall_off('provider_connections');
revoke all on provider_connections from postrider_ingress;

-- What the capture provider took for sandbox tenants: the newest 500 of each, for seven days, each cut to 256 KB.
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
select wall_off('captured_mails');
revoke insert, update on captured_mails from postrider_ingress;

-- As in 0002, with the sandbox's `suppressed@sandbox.test` (any plus-tag): suppressed for everything, without a row.
create or replace function standings(of_tenant uuid, of_contacts uuid[])
returns table (
    contact_id uuid, address text, contact_active boolean, marketing_status text, hard_bounced boolean, complained boolean,
    unsubscribed boolean, invalid boolean, suppressed_all boolean, suppressed_marketing boolean
)
language sql stable parallel safe
as $$
    select c.id, c.address, c.status = 'active', c.marketing_status,
           s.held & 1 <> 0, s.held & 2 <> 0, s.held & 8 <> 0, s.held & 4 <> 0,
           s.held & 16 <> 0
               or (c.address like 'suppressed%@sandbox.test' and substr(c.address, 11, 1) in ('@', '+')
                   and (select t.environment = 'sandbox' from tenants t where t.id = of_tenant)),
           s.held & 32 <> 0
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
