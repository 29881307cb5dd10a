-- What providers tell of mail they took: raw events, kept before they are answered for, and facts whose send is not known yet.

-- How a connection proves that an event is its provider's. SendGrid: the public key; Mailgun, Resend: the signing key; Postmark:
-- `user:password`. Several, one a line: any counts, so that they can be changed without losing events.
alter table provider_connections
    add column hook_secret bytea,               -- sealed by the vault, purpose 'provider_hook'
    add column hook_topics text[] not null default '{}';    -- SES: the SNS topics whose messages count

-- Of one connection, what the ingress needs to check an event before it knows the tenant. The role cannot read the table: what
-- mail is sent with stays hidden from it.
create function hook_connection(asked uuid)
returns table (tenant_id uuid, provider text, hook_secret bytea, hook_topics text[])
language sql stable security definer set search_path from current
as $$ select c.tenant_id, c.provider, c.hook_secret, c.hook_topics from provider_connections c where c.id = asked $$;
revoke execute on function hook_connection(uuid) from public;
grant execute on function hook_connection(uuid) to postrider_ingress, postrider_stages;
create index provider_connections_by_id on provider_connections (id);

-- Raw events, as they came. The row is committed before the provider is answered 2xx; engagement takes it from here. Kept for some
-- days after that, to look at and to know a repetition by.
create table inbound_events (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    connection_id uuid not null,                -- outlives the connection
    provider text not null,
    dedupe_key text not null,                   -- the event's, for its provider
    nonce text not null,                        -- this request's: the same one twice is a replay, another one a second delivery
    raw bytea not null check (octet_length(raw) <= 1048576),
    state text not null default 'received' check (state in ('received', 'handled', 'rejected')),
    reason text,                                -- why rejected: a code
    facts integer,                              -- how many it told
    attempts smallint not null default 0,
    due_at timestamptz default clock_timestamp(),   -- null once handled or rejected
    received_at timestamptz not null default now(),
    handled_at timestamptz,
    primary key (tenant_id, id),
    unique (tenant_id, connection_id, dedupe_key)
);
create index inbound_events_due on inbound_events (due_at, id) where due_at is not null;
create index inbound_events_by_age on inbound_events (received_at);
create index inbound_events_rejected on inbound_events (tenant_id, id) where state = 'rejected';
select wall_off('inbound_events');
-- The ingress may add, and tell a replay from a second delivery; nothing else.
revoke all on inbound_events from postrider_ingress;
grant insert on inbound_events to postrider_ingress;
grant select (tenant_id, connection_id, dedupe_key, nonce) on inbound_events to postrider_ingress;

-- Facts that wait for their send: told before our own commit, or of a send nobody knows. Looked at again with growing pauses for
-- 72 hours, then dropped; what was dropped stands here for some days more.
create table parked_facts (
    tenant_id uuid not null references tenants (id),
    id uuid not null,                           -- the fact's own id
    reason text not null check (reason in ('unknown_send', 'undecided_send')),
    send_id uuid,
    provider text,                              -- null: told by a link of ours
    provider_message_id text,
    signal jsonb,                               -- null: says only that the mail has left
    occurred_at timestamptz not null,
    parked_at timestamptz not null default now(),
    attempts smallint not null default 0,
    due_at timestamptz,                         -- null: dropped
    dropped_at timestamptz,
    primary key (tenant_id, id, reason),
    check (send_id is not null or provider is not null and provider_message_id is not null)
);
create index parked_facts_due on parked_facts (due_at, id) where due_at is not null;
create index parked_facts_dropped on parked_facts (dropped_at) where dropped_at is not null;
select wall_off('parked_facts');
revoke all on parked_facts from postrider_ingress;

-- Which send a provider's message is, for events that do not carry the send's id. For mail through tenants' own accounts only: an
-- index on `sends` would cost every mail its HOT update. By trigger, so that whoever learns the id notes it.
create table provider_messages (
    tenant_id uuid not null references tenants (id),
    provider text not null,
    message_id text not null,                   -- without angle brackets
    send_id uuid not null,
    noted_at timestamptz not null default now(),
    primary key (tenant_id, provider, message_id)
);
create index provider_messages_by_age on provider_messages using brin (noted_at);
select wall_off('provider_messages');
revoke all on provider_messages from postrider_ingress;

create function note_provider_message() returns trigger
language plpgsql set plan_cache_mode = auto
as $$
begin
    insert into provider_messages (tenant_id, provider, message_id, send_id)
    values (new.tenant_id, new.provider, btrim(new.provider_message_id, '<>'), new.id)
    on conflict (tenant_id, provider, message_id) do nothing;
    return null;
end $$;
create trigger sends_note_provider_message after update of provider_message_id on sends
    for each row when (
        new.provider in ('ses', 'postmark', 'sendgrid', 'mailgun', 'resend') and new.provider_message_id is not null
        and new.provider_message_id is distinct from old.provider_message_id)
    execute function note_provider_message();
insert into provider_messages (tenant_id, provider, message_id, send_id)
select tenant_id, provider, btrim(provider_message_id, '<>'), id from sends
where provider in ('ses', 'postmark', 'sendgrid', 'mailgun', 'resend') and provider_message_id is not null
on conflict do nothing;
