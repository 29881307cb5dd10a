-- What others are told: facts about sends stand in `events`, everything else that is told in `notices`, new contacts in
-- `contacts`. Whoever writes one leaves a note in `outbox` in the same transaction, by trigger, so that no writer can forget it;
-- the webhooks stage takes notes out in the transaction that makes deliveries of them. So a fact is told however the writer, the
-- bus or the stage ends.

-- Products whose events go to the bus, for systems that subscribe there (`postrider feed`).
create table event_feeds (
    product text not null,
    environment text not null check (environment in ('production', 'sandbox')),
    created_at timestamptz not null default now(),
    primary key (product, environment)
);
grant select on event_feeds to postrider_ingress;
grant select, insert, update, delete on event_feeds to postrider_stages;

-- Who else of the engine listens for a tenant: 'webhooks' while it has subscriptions that are not disabled, 'attribution' while
-- it has outcomes that a late click may still be credited for. Kept by their owners. Nobody listening, nothing is noted.
create table event_listeners (
    tenant_id uuid not null references tenants (id),
    listener text not null check (listener in ('webhooks', 'attribution')),
    primary key (tenant_id, listener)
);
select wall_off('event_listeners');

-- What is told and is no fact about a send.
create table notices (
    tenant_id uuid not null references tenants (id),
    id uuid not null,                           -- also the id of its event
    type text not null,                         -- campaign.sent, campaign.paused, domain.status_changed, sequence.completed, …
    product text,                               -- set: for this product only (request.rejected, task.created …)
    contact_id uuid,                            -- whom it is about, if anybody
    subject_id uuid,                            -- the campaign, domain, enrollment … it is about
    occurred_at timestamptz not null default now(),
    recorded_at timestamptz not null default now(),
    data jsonb not null default '{}',           -- the type's own part of the event's data; no personal data
    primary key (tenant_id, id)
);
create index notices_newest on notices (tenant_id, recorded_at, id);
select wall_off('notices');

-- Append-only and short-lived. One row per writing statement, tenant and month, not per fact.
create table outbox (
    id bigint generated always as identity primary key,
    tenant_id uuid not null,
    source text not null check (source in ('events', 'contacts', 'notices')),
    month date,                                 -- of the sends, for events
    sends uuid[],                               -- for events, parallel to ids
    ids uuid[] not null,
    noted_at timestamptz not null default clock_timestamp()
);
grant select, insert, update, delete on outbox to postrider_stages;

-- Of these tenants, those for whom anybody listens.
create function heard_tenants(asked uuid[]) returns setof uuid
language sql stable security definer set search_path from current
as $$
    select w.id from unnest(asked) as w (id)
    where exists (select from event_listeners l where l.tenant_id = w.id)
       or exists (select from tenant_links k join event_feeds f on f.product = k.product and f.environment = k.environment
                  where k.tenant_id = w.id)
$$;
revoke execute on function heard_tenants(uuid[]) from public;
grant execute on function heard_tenants(uuid[]) to postrider_ingress, postrider_stages;

create function note_events() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    insert into outbox (tenant_id, source, month, sends, ids)
    select a.tenant_id, 'events', a.month, array_agg(a.send_id), array_agg(a.id)
    from added a
    where a.type not in ('deferred', 'unknown')
      and a.tenant_id in (select heard_tenants((select array_agg(distinct tenant_id) from added)))
    group by a.tenant_id, a.month;
    return null;
end $$;
create trigger events_noted after insert on events
    referencing new table as added for each statement execute function note_events();

-- New contacts, a thousand to a note: an import makes fifty thousand.
create function note_contacts() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    if not exists (select from heard_tenants((select array_agg(distinct tenant_id) from added))) then
        return null;
    end if;
    insert into outbox (tenant_id, source, ids)
    select n.tenant_id, 'contacts', array_agg(n.id)
    from (select tenant_id, id, (row_number() over (partition by tenant_id) - 1) / 1000 as part from added) n
    where n.tenant_id in (select heard_tenants((select array_agg(distinct tenant_id) from added)))
    group by n.tenant_id, n.part;
    return null;
end $$;
create trigger contacts_noted after insert on contacts
    referencing new table as added for each statement execute function note_contacts();

create function note_notices() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    insert into outbox (tenant_id, source, ids)
    select a.tenant_id, 'notices', array_agg(a.id) from added a
    where a.tenant_id in (select heard_tenants((select array_agg(distinct tenant_id) from added)))
    group by a.tenant_id;
    return null;
end $$;
create trigger notices_noted after insert on notices
    referencing new table as added for each statement execute function note_notices();

-- A campaign that is done tells so itself, and what the engine writes into the audit log of its own accord is told as well.
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
    insert into notices (tenant_id, id, type, subject_id, data)
    values (new.tenant_id, new.id, new.action,
            case when new.subject ~ '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' then right(new.subject, 36)::uuid end,
            new.detail);
    return null;
end $$;
create trigger audit_noticed after insert on audit_log
    for each row when (new.tenant_id is not null and new.action in ('campaign.paused', 'domain.status_changed'))
    execute function notice_audited();

-- For replays and recounts: facts by when they were recorded. Rows are appended, so a range index is a few pages and costs
-- their writers nothing.
create index events_by_time on events using brin (recorded_at) with (pages_per_range = 32, autosummarize = on);

-- Requests of the later kinds.
alter table requests drop constraint requests_kind_check;
alter table requests add constraint requests_kind_check
    check (kind in ('campaign-launch', 'transactional', 'message', 'enrollment', 'outcome'));

-- Whether there is any listener, for all tenants: processes ring no bell while there is none.
create function anybody_listens() returns boolean
language sql stable security definer set search_path from current
as $$ select exists (select from event_listeners) $$;
revoke execute on function anybody_listens() from public;
grant execute on function anybody_listens() to postrider_ingress, postrider_stages;
