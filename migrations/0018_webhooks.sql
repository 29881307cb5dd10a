-- Webhooks: who subscribed to what, what they are told, and what became of each telling.
--
-- Three tables for one delivery, each for what it is good at: `webhook_events` keeps a body once however many subscriptions it
-- goes to, `webhook_deliveries` is the ledger that is shown, `webhook_queue` holds only what is still to be tried. So the
-- ledger has no index on what changes (its updates stay HOT), and what is due is found in a table as small as the backlog.

create table webhook_subscriptions (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    product text not null,
    environment text not null check (environment in ('production', 'sandbox')),
    url text not null,
    events text[] not null check (cardinality(events) > 0),
    description text,
    status text not null default 'active' check (status in ('active', 'paused', 'disabled')),
    disabled_reason text check (disabled_reason in ('deleted', 'gone', 'failing')),
    disabled_at timestamptz,
    secret bytea not null,                      -- the secret's text, sealed by the vault, purpose 'webhook'
    previous_secret bytea,                      -- likewise; signs along until previous_until
    previous_until timestamptz,
    failing_since timestamptz,                  -- the first failure since the last success
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (tenant_id, id),
    check ((status = 'disabled') = (disabled_at is not null))
) with (fillfactor = 70);
-- Whoever makes one active counts here, with the tenant's row locked: at most ten per tenant and product.
create index webhook_subscriptions_newest on webhook_subscriptions (tenant_id, product, created_at desc, id desc);
create index webhook_subscriptions_by_id on webhook_subscriptions (id);
select wall_off('webhook_subscriptions');

-- Facts are noted while somebody may be told. Writers of one tenant's subscriptions come one after the other here: of two that
-- look at the same time, one would not see the other's row.
create function listen_for_webhooks() returns trigger
language plpgsql
as $$
declare
    of_tenant uuid := coalesce(new.tenant_id, old.tenant_id);
begin
    perform pg_advisory_xact_lock(hashtextextended('webhook listener ' || of_tenant, 0));
    if exists (select from webhook_subscriptions s where s.tenant_id = of_tenant and s.status <> 'disabled') then
        insert into event_listeners (tenant_id, listener) values (of_tenant, 'webhooks') on conflict do nothing;
    else
        delete from event_listeners l where l.tenant_id = of_tenant and l.listener = 'webhooks';
    end if;
    return null;
end $$;
create trigger webhook_subscriptions_listen after insert or delete or update of status on webhook_subscriptions
    for each row execute function listen_for_webhooks();

-- The bytes of an event as one product is told it. Written once: every attempt, replay and subscription gets these.
create table webhook_events (
    tenant_id uuid not null,
    product text not null,
    id uuid not null,                           -- the event's
    type text not null,
    contact_id uuid,                            -- whom it is about: erased with him
    body bytea not null,
    created_at timestamptz not null default now(),
    primary key (tenant_id, product, id)
) with (autovacuum_vacuum_insert_scale_factor = 0.2);
-- A kilobyte is too little to be compressed; trying costs as much as the insert.
alter table webhook_events alter column body set storage external;
create index webhook_events_by_age on webhook_events (created_at);
create index webhook_events_by_contact on webhook_events (tenant_id, contact_id) where contact_id is not null;
select wall_off('webhook_events');
revoke insert, update, delete on webhook_events from postrider_ingress;

-- Bodies hold the address: they go when the contact is erased. A delivery that still waits for such a body is dead.
create function forget_erased_events() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    delete from webhook_events e where e.tenant_id = new.tenant_id and e.contact_id = new.id;
    return null;
end $$;
create trigger contacts_erased_events after update of status on contacts
    for each row when (new.status = 'erased' and old.status <> 'erased') execute function forget_erased_events();

-- One row per event and subscription; its id follows from the two (`Event::delivery_of`), so nothing is delivered as two. No
-- foreign key, as in `sends`: checking it would lock the subscription's row for every delivery.
create table webhook_deliveries (
    tenant_id uuid not null,
    id uuid not null,
    subscription_id uuid not null,
    product text not null,                      -- of the subscription: with event_id the body in webhook_events
    event_id uuid not null,
    type text not null,
    status text not null default 'pending' check (status in ('pending', 'delivered', 'dead')),
    attempts smallint not null default 0,
    next_attempt_at timestamptz,                -- null once delivered or dead
    attempted_at timestamptz,                   -- the last attempt
    status_code smallint,                       -- the last answer's
    error_code text,                            -- why the last attempt failed: a code of ours
    duration_ms integer,                        -- of the last attempt
    delivered_at timestamptz,
    replayed integer not null default 0,        -- how often it was asked for again
    created_at timestamptz not null default now(),
    primary key (tenant_id, id)
) with (fillfactor = 75);
create index webhook_deliveries_newest on webhook_deliveries (tenant_id, subscription_id, created_at desc, id desc);
create index webhook_deliveries_by_age on webhook_deliveries (created_at);
select wall_off('webhook_deliveries');
revoke insert, update, delete on webhook_deliveries from postrider_ingress;

-- What is still to be tried. Whoever holds the subscription's lease tries it; a row leaves with its delivery's end.
create table webhook_queue (
    tenant_id uuid not null,
    subscription_id uuid not null,
    due_at timestamptz not null,
    delivery_id uuid not null,
    primary key (tenant_id, subscription_id, due_at, delivery_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
grant select, insert, update, delete on webhook_queue to postrider_stages;

-- Which process delivers to a subscription. One at a time, so that "at most four in flight" holds over all processes and what
-- a process has in memory needs no claim of its own: when it dies, its lease runs out and another one loads the same rows.
create table webhook_leases (
    subscription_id uuid primary key,
    holder uuid not null,
    lease_until timestamptz not null
) with (fillfactor = 50);
grant select, insert, update, delete on webhook_leases to postrider_stages;

-- Replays asked for. `step_seconds` is how much of the time the next slice takes: found by trying, as tenants differ.
create table webhook_replays (
    tenant_id uuid not null,
    id uuid not null,
    subscription_id uuid not null,
    since timestamptz not null,
    until timestamptz not null,
    status text not null default 'running' check (status in ('running', 'completed', 'cancelled')),
    source text not null default 'events' check (source in ('events', 'notices', 'contacts')),
    cursor_at timestamptz not null,             -- at first: since
    cursor_id uuid not null default '00000000-0000-0000-0000-000000000000',
    step_seconds double precision not null default 60,
    deliveries bigint not null default 0,       -- how many it has asked for
    created_at timestamptz not null default now(),
    finished_at timestamptz,
    primary key (tenant_id, id),
    foreign key (tenant_id, subscription_id) references webhook_subscriptions (tenant_id, id),
    check (since < until)
);
create index webhook_replays_newest on webhook_replays (tenant_id, subscription_id, created_at desc, id desc);
create index webhook_replays_running on webhook_replays (created_at) where status = 'running';
select wall_off('webhook_replays');

-- What the attempts of all tenants came to, by the hour; for the platform's health. `shard` keeps processes apart.
create table webhook_totals (
    hour timestamptz not null,
    outcome text not null check (outcome in ('delivered', 'failed', 'dead', 'disabled')),
    shard smallint not null,
    count bigint not null,
    primary key (hour, outcome, shard)
) with (fillfactor = 50);
grant select, insert, update, delete on webhook_totals to postrider_stages;

-- For the platform's health: sums over all tenants, no rows. Ages are in seconds; null where there is nothing. What waits for a
-- paused subscription rests on purpose.
create function platform_webhooks() returns table (
    active bigint, failing bigint, due bigint, oldest double precision, unfanned double precision,
    delivered bigint, failed bigint, dead bigint, disabled bigint
)
language sql stable security definer set search_path from current
as $$
    select s.active, s.failing, q.due, q.oldest, o.unfanned, t.delivered, t.failed, t.dead, t.disabled
    from (select count(*) as active, count(*) filter (where failing_since < now() - interval '1 hour') as failing
          from webhook_subscriptions where status = 'active') s
    cross join (select count(*) as due, extract(epoch from now() - min(due_at))::double precision as oldest
          from (select q.due_at from webhook_queue q
                join webhook_subscriptions w on w.tenant_id = q.tenant_id and w.id = q.subscription_id and w.status = 'active'
                where q.due_at <= now() limit 10000) d) q
    cross join (select extract(epoch from now() - min(noted_at))::double precision as unfanned
          from (select noted_at from outbox order by id limit 1) n) o
    cross join (select coalesce(sum(count) filter (where outcome = 'delivered'), 0)::bigint as delivered,
                       coalesce(sum(count) filter (where outcome = 'failed'), 0)::bigint as failed,
                       coalesce(sum(count) filter (where outcome = 'dead'), 0)::bigint as dead,
                       coalesce(sum(count) filter (where outcome = 'disabled'), 0)::bigint as disabled
          from webhook_totals where hour >= date_trunc('hour', now() - interval '1 hour', 'UTC')) t
$$;
revoke execute on function platform_webhooks() from public;
grant execute on function platform_webhooks() to postrider_ingress, postrider_stages;

-- The outbox and the queue are written and emptied all the time: vacuumed by what was deleted, not by their size.
alter table outbox set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
