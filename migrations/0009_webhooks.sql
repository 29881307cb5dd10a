-- Events for products: the outbox and its triggers, webhook subscriptions and their deliveries, feeds on the bus.
--
-- Facts about sends are in `events`, everything else that becomes an event is in `notices`, new contacts are in `contacts`. A
-- trigger on each of these adds a row to `outbox` in the same transaction, so that every writer does it. Acceptances, which stand in `sends`
-- (the view `acceptances`), are noted by the statements that write them. The webhooks stage takes outbox rows out in the transaction that makes
-- deliveries of them. So an event is published however the writer, the bus or the stage ends.

-- Products whose events go to the bus, for systems that subscribe there (`postrider feed`).
create table event_feeds (
    product text not null,
    environment text not null check (environment in ('production', 'sandbox')),
    created_at timestamptz not null default now(),
    primary key (product, environment)
);
grant select on event_feeds to postrider_ingress;
grant select, insert, update, delete on event_feeds to postrider_stages;

-- Tenants with webhook subscriptions that are not disabled; kept by a trigger on these. While a tenant has neither a listener nor a
-- feed, nothing is written to the outbox.
create table event_listeners (
    tenant_id uuid not null references tenants (id) primary key
);
select enable_row_security('event_listeners');

-- Whether there is any listener, over all tenants: processes send no notification while there is none.
create function anybody_listens() returns boolean
language sql stable security definer set search_path from current
as $$ select exists (select from event_listeners) $$;
revoke execute on function anybody_listens() from public;
grant execute on function anybody_listens() to postrider_ingress, postrider_stages;

-- Of these tenants, those that have a listener or a feed. Triggers ask this several times for each mail. Written in SQL the question
-- was planned each time, a quarter of a millisecond; here its plan is made once for a connection. It goes by key: neither table is
-- read whole, however small it was when the plan was made.
create function subscribed_tenants(asked uuid[]) returns setof uuid
language plpgsql stable security definer
set search_path from current
set plan_cache_mode = 'force_generic_plan'
set enable_seqscan = 'off'
as $$
begin
    return query
    select w.id from unnest(asked) as w (id)
    where exists (select from event_listeners l where l.tenant_id = w.id)
       or exists (select from tenant_links k join event_feeds f on f.product = k.product and f.environment = k.environment
                  where k.tenant_id = w.id);
end $$;
revoke execute on function subscribed_tenants(uuid[]) from public;
grant execute on function subscribed_tenants(uuid[]) to postrider_stages;

-- What becomes an event and is no fact about a send.
create table notices (
    tenant_id uuid not null references tenants (id),
    id uuid not null,                           -- also the id of its event
    type text not null,                         -- campaign.sent, campaign.paused, domain.status_changed, sequence.completed, …
    product text,                               -- set: for this product only (request.rejected, task.created …)
    contact_id uuid,                            -- the contact it is about, if any
    subject_id uuid,                            -- the campaign, domain, enrollment … it is about
    occurred_at timestamptz not null default now(),
    recorded_at timestamptz not null default now(),
    data jsonb not null default '{}',           -- the type's own part of the event's data; no personal data
    primary key (tenant_id, id)
);
create index notices_newest on notices (tenant_id, recorded_at, id);
-- Of suppressed addresses that are no contact's, for the erasure of a later one.
create index notices_of_suppressions on notices (tenant_id, subject_id) where type = 'suppression.added' and contact_id is null;
select enable_row_security('notices');

-- The outbox -----------------------------------------------------------------------------------------------------------------

-- Append-only and short-lived. One row per writing statement, tenant and month, not per fact. Written and emptied all the time:
-- vacuumed by the number of deleted rows, not by the table's size.
create table outbox (
    id bigint generated always as identity primary key,
    tenant_id uuid not null,
    source text not null check (source in ('events', 'contacts', 'notices')),
    month date,                                 -- of the sends, for events
    sends uuid[],                               -- for events, parallel to ids
    ids uuid[] not null,
    facts integer not null generated always as (cardinality(ids)) stored,   -- to weigh a note without reading its ids
    noted_at timestamptz not null default clock_timestamp()     -- later: taken from then on
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
create index outbox_of_tenant on outbox (tenant_id, id);
grant select, insert, update, delete on outbox to postrider_stages;

-- What the bus did not take when its outbox row was taken: the keys of that row's facts, whose events are published to products'
-- feeds when the bus is back. So webhooks do not wait for the bus.
create table feed_notes (
    id bigint generated always as identity primary key,
    tenant_id uuid not null,
    source text not null check (source in ('events', 'contacts', 'notices')),
    month date,                                 -- of the sends, for events
    sends uuid[],                               -- for events, parallel to ids
    ids uuid[] not null,
    noted_at timestamptz not null default clock_timestamp()
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
grant select, insert, update, delete on feed_notes to postrider_stages;

-- Locks notes of a table that no other transaction has locked, one after the other, until they weigh `weight_max` or more: one at least,
-- `notes_max` at most. Answers their ids and places in the array. The locks are advisory and not on the rows: a row lock gives the
-- transaction an id, and while that lives Postgres prunes nothing that changed since.
create function lock_notes(of_table text, ids bigint[], weights bigint[], weight_max bigint, notes_max bigint)
returns table (place integer, id bigint)
language plpgsql
as $$
declare
    weight bigint := 0;
    notes bigint := 0;
begin
    for nth in 1..coalesce(cardinality(ids), 0) loop
        exit when weight >= weight_max or notes >= notes_max;
        if pg_try_advisory_xact_lock(hashtextextended('postrider ' || of_table || ' ' || ids[nth], 0)) then
            weight := weight + weights[nth];
            notes := notes + 1;
            place := nth;
            id := ids[nth];
            return next;
        end if;
    end loop;
end $$;
grant execute on function lock_notes(text, bigint[], bigint[], bigint, bigint) to postrider_stages;

create function note_events() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    insert into outbox (tenant_id, source, month, sends, ids)
    select a.tenant_id, 'events', a.month, array_agg(a.send_id), array_agg(a.id)
    from added a
    where a.type not in ('deferred', 'unknown')
      and a.tenant_id in (select subscribed_tenants((select array_agg(distinct tenant_id) from added)))
    group by a.tenant_id, a.month;
    return null;
end $$;
create trigger events_noted after insert on events
    referencing new table as added for each statement execute function note_events();

-- New contacts and notices, a thousand to a row: an import makes fifty thousand contacts.
create function note_rows() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    if not exists (select from subscribed_tenants((select array_agg(distinct tenant_id) from added))) then
        return null;
    end if;
    insert into outbox (tenant_id, source, ids)
    select n.tenant_id, tg_argv[0], array_agg(n.id)
    from (select tenant_id, id, (row_number() over (partition by tenant_id) - 1) / 1000 as part from added) n
    where n.tenant_id in (select subscribed_tenants((select array_agg(distinct tenant_id) from added)))
    group by n.tenant_id, n.part;
    return null;
end $$;
create trigger contacts_noted after insert on contacts
    referencing new table as added for each statement execute function note_rows('contacts');
create trigger notices_noted after insert on notices
    referencing new table as added for each statement execute function note_rows('notices');

-- A campaign that is done makes a notice by trigger, and so does what the engine itself writes into the audit log.
create function notice_finished_campaigns() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    insert into notices (tenant_id, id, type, subject_id, data)
    values (new.tenant_id, gen_random_uuid(), 'campaign.sent', new.id, jsonb_build_object('name', new.name, 'counts', new.counts));
    return null;
end $$;
create trigger campaigns_finished after update of status on campaigns
    for each row when (new.status = 'sent' and old.status <> 'sent') execute function notice_finished_campaigns();

create function notice_audited() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    insert into notices (tenant_id, id, type, product, subject_id, data)
    values (new.tenant_id, new.id, new.action,
            -- A subscription is its product's own.
            case when new.action = 'webhook.disabled' then (
                select s.product from webhook_subscriptions s where s.tenant_id = new.tenant_id and s.id = right(new.subject, 36)::uuid) end,
            case when new.subject ~ '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' then right(new.subject, 36)::uuid end,
            new.detail);
    return null;
end $$;
create trigger audit_noticed after insert on audit_log
    for each row when (new.tenant_id is not null and new.action in ('campaign.paused', 'domain.status_changed', 'webhook.disabled'))
    execute function notice_audited();

-- Suppressions have many writers. One that had expired and is in force again is a new one, and so is one that became stricter. They are noted
-- for a later replay also while there is no listener.
create function suppression_data(s suppressions) returns jsonb
language sql stable
as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'reason', s.reason, 'scope', s.scope, 'source', s.source, 'send_id', s.send_id,
        -- As in all answers.
        'expires_at', to_char(s.expires_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')))
$$;
create function notice_suppressions() returns trigger
language plpgsql security definer set search_path from current set plan_cache_mode = auto
as $$
begin
    insert into notices (tenant_id, id, type, contact_id, subject_id, data)
    select s.tenant_id, gen_random_uuid(), tg_argv[0], c.id, s.id, suppression_data(s)
    from changed s
    left join lateral (
        select c.id from contacts c where c.tenant_id = s.tenant_id and c.address = s.address and c.status <> 'erased' offset 0
    ) c on true
    -- One that has expired is deleted, and not lifted.
    where is_in_force(s.expires_at);
    return null;
end $$;
create trigger suppressions_added_noticed after insert on suppressions
    referencing new table as changed for each statement execute function notice_suppressions('suppression.added');
create trigger suppressions_lifted_noticed after delete on suppressions
    referencing old table as changed for each statement execute function notice_suppressions('suppression.lifted');

create function notice_renewed_suppression() returns trigger
language plpgsql security definer set search_path from current set plan_cache_mode = auto
as $$
begin
    insert into notices (tenant_id, id, type, contact_id, subject_id, data)
    values (new.tenant_id, gen_random_uuid(), 'suppression.added',
            (select c.id from contacts c where c.tenant_id = new.tenant_id and c.address = new.address and c.status <> 'erased'), new.id,
            suppression_data(new));
    return null;
end $$;
create trigger suppressions_renewed_noticed after update on suppressions
    for each row
    when ((new.created_at, new.scope, new.source, new.expires_at) is distinct from (old.created_at, old.scope, old.source, old.expires_at))
    execute function notice_renewed_suppression();

-- The errors of an import quote its rows: they stay in `imports`.
create function notice_imports() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    insert into notices (tenant_id, id, type, subject_id, data)
    values (new.tenant_id, gen_random_uuid(), 'import.finished', new.id,
            (new.summary - 'errors' - 'ignored_columns')
                || jsonb_build_object('name', new.name, 'operation', new.operation, 'status', new.status, 'source_slug', new.source_slug));
    return null;
end $$;
create trigger imports_noticed after insert on imports for each row execute function notice_imports();

-- Webhooks -------------------------------------------------------------------------------------------------------------------
--
-- Three tables for one delivery, each for what it is good at: `webhook_events` keeps a body once however many subscriptions it
-- goes to, `webhook_deliveries` is the record that is shown, `webhook_queue` holds only what is still to be tried. So the
-- deliveries have no index on what changes (their updates stay HOT), and what is due is found in a table as small as the backlog.

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
    previous_secret bytea,                      -- likewise; requests are signed with it too until previous_until
    previous_until timestamptz,
    failing_since timestamptz,                  -- the first failure since the last success, or since days without deliveries
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (tenant_id, id),
    check ((status = 'disabled') = (disabled_at is not null))
) with (fillfactor = 70);
-- Counted, with the tenant's row locked, before one becomes active: at most ten per tenant and product.
create index webhook_subscriptions_newest on webhook_subscriptions (tenant_id, product, created_at desc, id desc);
-- Disabled ones are kept, and each fan-out asks for the others.
create index webhook_subscriptions_live on webhook_subscriptions (tenant_id, product, id) where status <> 'disabled';
select enable_row_security('webhook_subscriptions');

-- Writers of one tenant's subscriptions run one after the other here: of two at the same time, one would not see the
-- other's row.
create function listen_for_webhooks() returns trigger
language plpgsql
as $$
declare
    of_tenant uuid := coalesce(new.tenant_id, old.tenant_id);
begin
    perform pg_advisory_xact_lock(hashtextextended('webhook listener ' || of_tenant, 0));
    if exists (select from webhook_subscriptions s where s.tenant_id = of_tenant and s.status <> 'disabled') then
        insert into event_listeners (tenant_id) values (of_tenant) on conflict do nothing;
    else
        delete from event_listeners l where l.tenant_id = of_tenant;
    end if;
    return null;
end $$;
create trigger webhook_subscriptions_listen after insert or delete or update of status on webhook_subscriptions
    for each row execute function listen_for_webhooks();

-- The bytes of an event as one product gets it. Written once: every attempt, replay and subscription gets these.
create table webhook_events (
    tenant_id uuid not null,
    product text not null,
    id uuid not null,                           -- the event's
    erased_with uuid,                           -- the contact it is about; the md5 of a suppressed address that is no contact's
    body bytea not null,
    traceparent text,                           -- of the mail the event is about: passed on to the endpoint
    created_at timestamptz not null default now(),
    primary key (tenant_id, product, id)
) with (autovacuum_vacuum_insert_scale_factor = 0.2);
-- A kilobyte is too little to be compressed; trying costs as much as the insert.
alter table webhook_events alter column body set storage external;
create index webhook_events_by_age on webhook_events (created_at);
create index webhook_events_of_person on webhook_events (tenant_id, erased_with) where erased_with is not null;
select enable_row_security('webhook_events');
revoke insert, update, delete on webhook_events from postrider_ingress;

-- Bodies contain the address: they go when the contact is erased. A delivery that still waits for such a body is dead. A body that is
-- being written meanwhile goes with the erasure's last steps. Suppressions of the address from before it was a contact's are the contact's
-- from now on: a replay leaves the address out.
create function delete_erased_events() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    delete from webhook_events e where e.tenant_id = new.tenant_id and e.erased_with in (new.id, md5(old.address)::uuid);
    update notices n set contact_id = new.id
    from suppressions s
    where s.tenant_id = new.tenant_id and s.address = old.address
      and n.tenant_id = new.tenant_id and n.subject_id = s.id and n.type = 'suppression.added' and n.contact_id is null;
    return null;
end $$;
create trigger contacts_erased_events after update of status on contacts
    for each row when (new.status = 'erased' and old.status <> 'erased') execute function delete_erased_events();

-- One row per event and subscription; its id follows from the two (`Event::delivery_of`), so one event is never two deliveries. No
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
    replayed integer not null default 0,        -- how often a replay asked for it again
    created_at timestamptz not null default now(),
    primary key (tenant_id, id)
) with (fillfactor = 75);
create index webhook_deliveries_newest on webhook_deliveries (tenant_id, subscription_id, created_at desc, id desc);
-- A rare type among many others. Its entry costs 6 us and 190 bytes of WAL; what it holds never changes, so updates stay HOT.
create index webhook_deliveries_by_type on webhook_deliveries (tenant_id, subscription_id, type, created_at desc, id desc);
create index webhook_deliveries_by_age on webhook_deliveries (created_at);
select enable_row_security('webhook_deliveries');
revoke insert, update, delete on webhook_deliveries from postrider_ingress;

-- Dead deliveries, which are few and often asked for. A table of their own: an index on the status of `webhook_deliveries` would end
-- the HOT updates of all the others. By trigger, so that every writer does it.
create table webhook_dead (
    tenant_id uuid not null,
    subscription_id uuid not null,
    created_at timestamptz not null,            -- the delivery's
    delivery_id uuid not null,
    primary key (tenant_id, subscription_id, created_at, delivery_id)
);
select enable_row_security('webhook_dead');
revoke insert, update, delete on webhook_dead from postrider_ingress;

create function note_dead_delivery() returns trigger
language plpgsql
as $$
begin
    if tg_op = 'UPDATE' and new.status = 'dead' then
        insert into webhook_dead (tenant_id, subscription_id, created_at, delivery_id)
        values (new.tenant_id, new.subscription_id, new.created_at, new.id) on conflict do nothing;
    else
        delete from webhook_dead d
        where d.tenant_id = old.tenant_id and d.subscription_id = old.subscription_id and d.created_at = old.created_at
          and d.delivery_id = old.id;
    end if;
    return null;
end $$;
create trigger webhook_deliveries_died after update of status on webhook_deliveries
    for each row when ((new.status = 'dead') <> (old.status = 'dead')) execute function note_dead_delivery();
create trigger webhook_deliveries_deleted after delete on webhook_deliveries
    for each row when (old.status = 'dead') execute function note_dead_delivery();

-- What is still to be tried, by the process that holds the subscription's lease. A row goes when its delivery is over.
create table webhook_queue (
    tenant_id uuid not null,
    subscription_id uuid not null,
    due_at timestamptz not null,
    delivery_id uuid not null,
    primary key (tenant_id, subscription_id, due_at, delivery_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
grant select, insert, update, delete on webhook_queue to postrider_stages;

-- The first waiting deliveries of one subscription: they are in the queue, which the ingress may not read.
create function waiting_deliveries(of_tenant uuid, of_subscription uuid, most integer) returns setof uuid
language sql stable security definer set search_path from current
as $$
    select q.delivery_id from webhook_queue q
    where q.tenant_id = of_tenant and q.subscription_id = of_subscription
    order by q.due_at, q.delivery_id limit most
$$;
revoke execute on function waiting_deliveries(uuid, uuid, integer) from public;
grant execute on function waiting_deliveries(uuid, uuid, integer) to postrider_ingress;

-- Which process delivers to a subscription. One at a time, so that "at most four in flight" holds over all processes and what
-- a process has in memory needs no claim of its own: when it dies, its lease runs out and another one loads the same rows.
create table webhook_leases (
    subscription_id uuid primary key,
    holder uuid not null,
    lease_until timestamptz not null
) with (fillfactor = 50);
grant select, insert, update, delete on webhook_leases to postrider_stages;

-- Requested replays. `step_seconds` is how much of the period the next slice takes: found by trying, as tenants differ.
create table webhook_replays (
    tenant_id uuid not null,
    id uuid not null,
    subscription_id uuid not null,
    since timestamptz not null,
    until timestamptz not null,
    status text not null default 'running' check (status in ('running', 'completed', 'cancelled')),
    source text not null default 'acceptances' check (source in ('acceptances', 'events', 'notices', 'contacts')),
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
select enable_row_security('webhook_replays');

-- How the attempts of all tenants ended, by the hour; for the platform's health. `shard` keeps processes apart.
create table webhook_totals (
    hour timestamptz not null,
    outcome text not null check (outcome in ('delivered', 'failed', 'dead', 'disabled')),
    shard smallint not null,
    count bigint not null,
    primary key (hour, outcome, shard)
) with (fillfactor = 50);
grant select, insert, update, delete on webhook_totals to postrider_stages;
