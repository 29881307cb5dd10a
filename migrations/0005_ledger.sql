-- The ledger: requests, batches, sends and events, their month partitions, and the gate.

-- Accepted commands. A row is committed before anything is announced on the bus.
create table requests (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    product text not null,
    environment text not null,
    kind text not null check (kind in ('campaign-launch', 'transactional', 'message', 'enrollment', 'outcome')),
    payload jsonb not null,
    options jsonb,                              -- what the caller set for this mail: headers, tags, tracking; null without any
    state text not null default 'accepted' check (state in ('accepted', 'handled', 'rejected')),
    outcome text,                               -- why rejected, or what became of it
    announce_after timestamptz,                 -- when a sweep announces it again; null once handled
    announcements integer not null default 0,
    received_at timestamptz not null default now(),
    due_at timestamptz not null default now(),  -- later than received_at for a scheduled mail or campaign
    handled_at timestamptz,
    primary key (tenant_id, id)
);
create index requests_due on requests (announce_after) where announce_after is not null;
-- What waits of one tenant: rescheduling a campaign, removing a sender, the oldest open mail.
create index requests_waiting on requests (tenant_id, kind, due_at) where announce_after is not null;
-- Erasing a contact locks its row: the requests that name the address are found by key, not by reading all of the tenant's.
create index requests_by_address on requests (tenant_id, (payload ->> 'address')) where kind = 'transactional';

-- The transactional requests to these addresses. A security definer: row security would keep the address out of the condition of the index.
create function requests_to(of_tenant uuid, addresses text[]) returns setof uuid
language sql stable security definer set search_path from current rows 10
as $$
    select r.id from requests r
    where of_tenant = app_tenant() and r.tenant_id = of_tenant and r.kind = 'transactional' and r.payload ->> 'address' = any (addresses)
$$;
revoke execute on function requests_to(uuid, text[]) from public;
grant execute on function requests_to(uuid, text[]) to postrider_ingress;
-- Those with copies that are not handled: accepted, or rejected. By the recipients of the copies; the tenant is left to the function below.
create index requests_with_copies on requests using gin ((options -> 'copies') jsonb_path_ops) where state <> 'handled' and options ? 'copies';

-- The unhandled requests with a copy to this address. A security definer, as `requests_to`.
create function requests_copied_to(of_tenant uuid, address text) returns setof uuid
language sql stable security definer set search_path from current rows 10
as $$
    select r.id from requests r
    where of_tenant = app_tenant() and r.tenant_id = of_tenant and r.state <> 'handled' and r.options ? 'copies'
      and r.options -> 'copies' @> jsonb_build_array(jsonb_build_object('address', address))
$$;
revoke execute on function requests_copied_to(uuid, text) from public;
grant execute on function requests_copied_to(uuid, text) to postrider_ingress;
-- Retention, and the request log; those that were refused, which are few, are asked for by themselves. The product is in it, so that the
-- rows of a busy product are not read for the page of a quiet one: an index of its own would be one more for each mail to write.
create index requests_newest on requests (tenant_id, received_at desc, id desc, product);
create index requests_rejected on requests (tenant_id, received_at desc, id desc) where state = 'rejected';
-- The request log by kind. Most requests are transactional mail; those cost no entry here.
create index requests_by_kind on requests (tenant_id, kind, received_at desc, id desc) where kind <> 'transactional';
select enable_row_security('requests');

-- Whether a launch waits for another of its tenant that is due and older: the stage looks up one audience at a time, and the launches of
-- one tenant must not keep those of others waiting. One that three announcements did not help is not waited for. Served by
-- `requests_waiting`.
create function waits_for_launch(of_tenant uuid, launch_due_at timestamptz, launch uuid) returns boolean
language sql stable parallel safe
as $$
    select exists (
        select from requests r
        where r.announce_after is not null and r.tenant_id = of_tenant and r.kind = 'campaign-launch' and r.state = 'accepted'
          and r.announcements < 3 and (r.due_at, r.id) < (launch_due_at, launch))
$$;
grant execute on function waits_for_launch(uuid, timestamptz, uuid) to postrider_ingress, postrider_stages;

-- How long a request waits after so many announcements until the next: 30 s, doubling to ten minutes.
create function request_pause(announcements integer) returns interval
language sql immutable parallel safe
as $$ select make_interval(secs => least(30 * power(2, least(announcements, 5)), 600)) $$;
grant execute on function request_pause(integer) to postrider_stages;

-- The options of a request without an address among the recipients of copies. The place stays: it says which send a copy is.
create function without_copy(options jsonb, address text, erased text) returns jsonb
language sql immutable parallel safe
as $$
    select jsonb_set(options, '{copies}', (
        select jsonb_agg(case
            when copy ->> 'address' = address then jsonb_build_object('address', erased, 'role', copy -> 'role')
            else copy
        end order by place)
        from jsonb_array_elements(options -> 'copies') with ordinality as copies (copy, place)
    ))
$$;
grant execute on function without_copy(jsonb, text, text) to postrider_ingress, postrider_stages;

-- Messages and batches -------------------------------------------------------------------------------------------------------

-- One-off messages: a body of its own to up to 50 people, dispatched while the caller waits. Tests of campaigns, too: what would be
-- rendered for one contact, to up to 10 people.
create table messages (
    tenant_id uuid not null references tenants (id),
    id uuid not null,                           -- also the id of its request and of its batch; low nine bits zero
    sender_id uuid not null,
    content_id uuid not null,
    reply_to text,
    dot_number bigint,                          -- as the caller gave it
    is_metered boolean not null default true,   -- counts against the hourly limit: a caller posted it, and no step of a sequence
    is_test boolean not null default false,     -- the test of a campaign
    rendered_for uuid,                          -- of a test: the contact whose mail it shows; erased with that contact
    classification text not null default 'operational' check (classification in ('marketing', 'operational', 'transactional')),
    created_at timestamptz not null default clock_timestamp(),  -- read under the tenant's lock, unlike now()
    due_at timestamptz not null default now(),  -- later than created_at for a scheduled message
    purged_at timestamptz,                   -- its attachments and compiled form are gone
    primary key (tenant_id, id),
    foreign key (tenant_id, sender_id) references senders (tenant_id, id),
    foreign key (tenant_id, content_id) references contents (tenant_id, id),
    foreign key (tenant_id, rendered_for) references contacts (tenant_id, id)
);
create index messages_by_time on messages (tenant_id, created_at);
create index messages_by_rendered_for on messages (tenant_id, rendered_for, id) where rendered_for is not null;
create index messages_by_sender on messages (tenant_id, sender_id);                -- removing a sender asks for it
create index messages_to_purge on messages (tenant_id, due_at) where purged_at is null;
select enable_row_security('messages');

-- The recipients of a message. Each becomes one send, under the id given here.
create table message_recipients (
    tenant_id uuid not null,
    send_id uuid not null,                      -- message id + ordinal
    message_id uuid not null,
    contact_id uuid not null,
    name text,                                  -- for the To header
    primary key (tenant_id, send_id),
    unique (tenant_id, message_id, contact_id),
    foreign key (tenant_id, message_id) references messages (tenant_id, id),
    foreign key (tenant_id, contact_id) references contacts (tenant_id, id)
);
create index message_recipients_by_contact on message_recipients (tenant_id, contact_id);
select enable_row_security('message_recipients');

-- Attachments of one-off messages and of transactional mail, as they go over the wire: base64 in lines. A calendar invite is one of them.
-- Deleted a few days after the mail was due, when it is over.
create table message_attachments (
    tenant_id uuid not null,
    message_id uuid not null,                   -- also the id of its request, and of its batch
    place smallint not null,
    filename text not null,
    media_type text not null,
    content_id text,                            -- of an image that the HTML shows by `cid:`
    encoded bytea not null,
    primary key (tenant_id, message_id, place),
    foreign key (tenant_id, message_id) references requests (tenant_id, id) on delete cascade
);
-- Mostly compressed formats: trying to compress them again costs more than the insert.
alter table message_attachments alter column encoded set storage external;
select enable_row_security('message_attachments');

-- The compiled form of a mail with attachments is its own, and goes with them: when they are purged, or with their request.
create function delete_own_skeletons() returns trigger
language plpgsql set plan_cache_mode = auto
as $$
declare
    own text := 'message-' || replace(old.message_id::text, '-', '');
begin
    delete from skeletons where tenant_id = old.tenant_id and id in (own, own || '-untracked');
    return null;
end $$;
create trigger attachments_delete_skeletons after delete on message_attachments
    for each row when (old.place = 0) execute function delete_own_skeletons();

-- The durable work list: at most 500 sends of one message, dispatched together.
--   held       the remainder of an A/B test: waits for the winner
--   timed      waits for its time: the end of quiet hours, or a time of the day in its recipients' zones; waiting at announce_after
--   waiting    not dispatched yet (the audience stage dispatches, tenants in turn)
--   announced  dispatched; announced again at announce_after until nothing is open, in the bulk lane from the fourth time on by dispatch if unpaced
--   resting    all that is open is deferred; announced again at announce_after
--   done       nothing is open
-- The counters are one number per send state and per fact, kept in the transaction that changes the sends, and equal to a
-- recount. They are here and not on the campaign, so that delivery workers do not queue for one row.
create table batches (
    tenant_id uuid not null references tenants (id),
    id uuid not null,                           -- low nine bits zero; a send's id is this plus its ordinal
    month date not null,                        -- the partition of its sends
    kind text not null check (kind in ('campaign', 'sequence', 'transactional', 'one_off', 'test')),
    lane text not null check (lane in ('priority', 'bulk')),
    classification text not null check (classification in ('marketing', 'operational', 'transactional')),
    campaign_id uuid,
    content_id uuid not null,
    sender_id uuid not null,
    variant text,
    state text not null default 'waiting' check (state in ('held', 'timed', 'waiting', 'announced', 'resting', 'done')),
    announce_after timestamptz,                 -- null when waiting or done
    -- `announce_after` changes with every group of fences: an index of it would cost each of them its HOT update. This one is null until a batch
    -- waits for its time.
    timed_until timestamptz generated always as (case when state = 'timed' then announce_after end) stored,
    announcement integer not null default 0,
    due_at timestamptz,                         -- the time it waited for: its mail is dated by it
    dispatched_sends integer,                             -- of a paced campaign: how many sends were last dispatched with it
    quiet_at timestamptz,                       -- when it last ceased to be announced; in the priority lane also when it came back
    lease_until timestamptz,                    -- the earliest lease among its fenced sends
    size integer not null,
    queued integer not null default 0,
    fenced integer not null default 0,
    deferred integer not null default 0,
    sent integer not null default 0,
    failed integer not null default 0,
    unknown integer not null default 0,
    skipped integer not null default 0,
    cancelled integer not null default 0,
    expired integer not null default 0,
    delivered integer not null default 0,       -- see `counted_delivered_at`
    confirmed integer not null default 0,       -- see `counted_confirmed_at`
    bounced integer not null default 0,
    complained integer not null default 0,
    -- For an index as `timed_until`: it changes with the first bounce or complaint only.
    needs_tripwire boolean not null generated always as (bounced + complained > 0) stored,
    opened integer not null default 0,
    opened_human integer not null default 0,
    clicked integer not null default 0,
    clicked_human integer not null default 0,
    replied integer not null default 0,         -- by a person; what a program wrote (RFC 3834) is an event only
    unsubscribed integer not null default 0,
    created_at timestamptz not null default now(),
    done_at timestamptz,
    primary key (tenant_id, id),
    foreign key (tenant_id, campaign_id) references campaigns (tenant_id, id),
    foreign key (tenant_id, content_id) references contents (tenant_id, id),
    foreign key (tenant_id, sender_id) references senders (tenant_id, id),
    constraint batches_counters_add_up check (
        queued + fenced + deferred + sent + failed + unknown + skipped + cancelled + expired = size
        and least(queued, fenced, deferred, sent, failed, unknown, skipped, cancelled, expired) >= 0
    )
) with (fillfactor = 70);
-- Removing a sender asks for it. A tenant has few senders, so the entries take little space.
create index batches_by_sender on batches (tenant_id, sender_id);
create index batches_by_campaign on batches (tenant_id, campaign_id, id) where campaign_id is not null;
create index batches_open on batches (lane, state, tenant_id, id) where state <> 'done';
create index batches_timed on batches (timed_until) where timed_until is not null;
-- For the tripwire.
create index batches_for_tripwire on batches (tenant_id, campaign_id) where needs_tripwire;
-- Whether a batch is set aside for a day (`owed::set_aside`): it is not under way, though it is announced and its sends are queued. Its two
-- times are one; no other pause makes them so.
create function is_set_aside(announce_after timestamptz, quiet_at timestamptz) returns boolean
language sql stable parallel safe
as $$ select coalesce(announce_after = quiet_at and announce_after > now(), false) $$;

-- What each tenant has in flight of the bulk lane. What is deferred is in flight once its batch was dispatched again for it; a batch set
-- aside for a day is not.
create view bulk_in_flight with (security_invoker = true) as
select tenant_id, sum(queued + fenced + case when quiet_at is null then 0 else deferred end) as weight
from batches
where lane = 'bulk' and state = 'announced' and not is_set_aside(announce_after, quiet_at)
group by tenant_id;
grant select on bulk_in_flight to postrider_ingress, postrider_stages;
-- Large batches of no campaign (transactional mail, sequences) wait for their tenant's turn like those of campaigns; they are found by tenant.
create index batches_direct_waiting on batches (tenant_id, id)
    where lane = 'bulk' and state = 'waiting' and campaign_id is null;
-- What a paced campaign has used of its minute. `quiet_at` changes with the state only, so this costs no HOT update.
create index batches_paced on batches (tenant_id, campaign_id, quiet_at) where dispatched_sends is not null;
-- Batches with an unknown send. The counter changes only when a send becomes doubtful or decided, so this costs no HOT update.
create index batches_unknown on batches (lane, id) where unknown > 0;
-- A return path names its send and has no space for the tenant. The batch knows the tenant.
create index batches_by_id on batches (id);
select enable_row_security('batches');

-- Under the frequency cap, less urgent mail of a tenant waits for that of these campaigns: of the urgencies asked for, running, not paused, their
-- window open, and launched within the last three days. So no mail waits for another for ever. Served by campaigns_by_status.
create function campaigns_first_under_cap(of_tenant uuid, urgencies text[]) returns table (id uuid, month date, urgency text)
language sql stable parallel safe
as $$
    select c.id, c.month, c.urgency
    from campaigns c
    where c.tenant_id = of_tenant and c.status = 'sending'
      and c.urgency = any (urgencies) and c.classification = 'marketing' and not c.paused
      and (c.closes_at is null or c.closes_at > now()) and c.launched_at > now() - interval '3 days'
$$;
grant execute on function campaigns_first_under_cap(uuid, text[]) to postrider_ingress, postrider_stages;

-- Whether a send may pass its fence within the hour: it is queued and not held for the winner of a test, or it is put off for no longer; and
-- its batch neither waits for a later time nor is set aside.
create function is_owed_soon(send_state text, next_attempt_at timestamptz, batch_state text, announce_after timestamptz, quiet_at timestamptz)
returns boolean
language sql stable parallel safe
as $$
    select (send_state = 'queued' and batch_state <> 'held' or send_state = 'deferred' and next_attempt_at <= now() + interval '1 hour')
       and not (batch_state = 'timed' and announce_after > now() + interval '1 hour') and not is_set_aside(announce_after, quiet_at)
$$;
grant execute on function is_owed_soon(text, timestamptz, text, timestamptz, timestamptz) to postrider_ingress, postrider_stages;

-- The batch of a send: its id without the last nine bits.
create function batch_of(send uuid) returns uuid
language sql immutable parallel safe
as $$ select encode(set_byte(set_byte(uuid_send(send), 15, 0), 14, get_byte(uuid_send(send), 14) & 254), 'hex')::uuid $$;
grant execute on function batch_of(uuid) to postrider_ingress, postrider_stages;

-- Sends and events -----------------------------------------------------------------------------------------------------------

-- One row per recipient of one message, written before anything is sent.
-- No index on `state`: work is found through `batches`, and updates stay HOT. No foreign keys: rows are made by set-based
-- statements from the very tables they would point to, at half a million a second.
create table sends (
    tenant_id uuid not null,
    id uuid not null,                           -- batch id + ordinal
    month date not null,                        -- of the id's timestamp
    campaign_id uuid,
    request_id uuid,
    contact_id uuid not null,
    state text not null default 'queued',       -- one of the counters of `batches` from queued to expired
    reason text,                                -- skip reason of skipped, failure class of failed
    attempts smallint not null default 0,
    doubtful smallint not null default 0,       -- how often it ended in `unknown`, and no answer came later; and deferrals since
    fence_token uuid,                           -- of the worker whose fence it is
    -- The token of an attempt whose outcome was unknown and that was repeated: a late acceptance of the first attempt is still evidence.
    doubted_token uuid,
    -- The provider route of the last attempt (`provider_connections.version`); null: the platform's relay.
    -- Mail in doubt takes no other.
    route uuid,
    lease_until timestamptz,
    fenced_at timestamptz,
    next_attempt_at timestamptz,
    decided_at timestamptz,                     -- when it reached the state it is in, if that is an end state
    provider text,                              -- the kind of the route of the last fence that was not taken back; stays once `delivered_at` is set
    provider_message_id text,                   -- the id the route gave it: for SMTP our Message-ID
    smtp_code smallint,
    enhanced_code text,
    response text,                              -- the server's last answer, cut to 500 characters
    delivered_at timestamptz,
    bounced_at timestamptz,
    complained_at timestamptz,
    opened_at timestamptz,                      -- the first open of any kind
    clicked_at timestamptz,                     -- the first click of any kind
    -- The first open and click by a person, as far as can be known: mail programs fetch pictures and scanners follow links.
    human_opened_at timestamptz,
    human_clicked_at timestamptz,
    replied_at timestamptz,                     -- the first answer by a person
    unsubscribed_at timestamptz,
    primary key (tenant_id, id, month)
) partition by range (month);
-- No recipient is mailed twice: one send per contact (and so per canonical address) and campaign, or request.
create unique index sends_once_per_campaign on sends (tenant_id, campaign_id, contact_id, month) where campaign_id is not null;
create unique index sends_once_per_request on sends (tenant_id, request_id, contact_id, month) where request_id is not null;
-- "Which mail was sent to the contact within these days?" Campaign mail is found by the campaigns of the time and
-- `sends_once_per_campaign`; all other mail by this index, which campaigns do not pay for.
create index sends_by_contact on sends (tenant_id, contact_id, id) where campaign_id is null;
select enable_row_security('sends');

-- Append-only facts about sends, in the partition of the send's launch. The key starts with the send, so a send's timeline
-- is one index range and a repeated signal is refused by the same index. A server's plain acceptance, which most mail has, is no row of this
-- table: it stands in the send's own row (`acceptances`).
create table events (
    tenant_id uuid not null,
    send_id uuid not null,
    id uuid not null,                           -- a repeat carries the same id
    month date not null,                        -- of the send's id
    type text not null,                         -- sent, deferred, failed, unknown, opened, clicked, unsubscribed, …
    occurred_at timestamptz not null,
    recorded_at timestamptz not null default now(),
    detail jsonb not null default '{}',
    primary key (tenant_id, send_id, id, month)
) partition by range (month);
-- For replays and recounts: facts by when they were recorded. Rows are appended, so a range index is a few pages and costs
-- their writers nothing.
create index events_by_time on events using brin (recorded_at) with (pages_per_range = 32, autosummarize = on);
select enable_row_security('events');

-- What the fact of an acceptance tells, by the columns of its send.
create function acceptance_detail(attempts smallint, smtp_code smallint, enhanced_code text, response text) returns jsonb
language sql stable parallel safe
as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'attempt', attempts, 'smtp_code', smtp_code, 'enhanced_code', enhanced_code, 'response', response))
$$;
grant execute on function acceptance_detail(smallint, smallint, text, text) to postrider_ingress, postrider_stages;

-- Plain acceptances, as facts. A send that is sent, and has no event that says so, was accepted by a server in its last attempt; this fact has
-- the id of the send.
create view acceptances with (security_invoker = true) as
select s.tenant_id, s.id as send_id, s.id, s.month, 'sent' as type, s.decided_at as occurred_at, s.decided_at as recorded_at,
       acceptance_detail(s.attempts, s.smtp_code, s.enhanced_code, s.response) as detail
from sends s
where s.state = 'sent'
  -- Asked of each send, by key: a join might read all events of the tenant.
  and not exists (select from events e
                  where e.tenant_id = s.tenant_id and e.send_id = s.id and e.month = s.month and e.type = 'sent' offset 0);

-- All facts about sends.
create view send_facts with (security_invoker = true) as
select tenant_id, send_id, id, month, type, occurred_at, recorded_at, detail from events
union all
select * from acceptances;
grant select on acceptances, send_facts to postrider_ingress, postrider_stages;

-- What was rendered for one priority send, kept until it is decided, so that a second attempt has the same bytes. In the form it has on
-- the bus: a frame with one recipient.
create table renditions (
    tenant_id uuid not null references tenants (id),
    send_id uuid not null,
    rendered bytea not null,
    created_at timestamptz not null default now(),
    primary key (tenant_id, send_id)
);
create index renditions_by_age on renditions (created_at);
select enable_row_security('renditions');

-- What counts as delivered: confirmed where the route can confirm, otherwise accepted by the receiving server, and in both cases
-- not bounced later. `delivered` counts both; `confirmed` counts those that a provider has confirmed.

-- True where the route is the receiving server's own SMTP session, a relay or the sandbox: acceptance is all there is to know. An
-- HTTP provider accepts a mail and reports its delivery later. As `schemas::events::delivers_at_once`. A mail has its provider from its fence
-- on, so reports that come before the answer count by the same rule.
create function delivers_at_once(provider text) returns boolean
language sql immutable parallel safe
as $$ select provider in ('smtp', 'capture') $$;

-- Since when a send counts as delivered; null while it does not.
create function counted_delivered_at(
    provider text, state text, decided_at timestamptz, delivered_at timestamptz, bounced_at timestamptz
) returns timestamptz
language sql immutable parallel safe
as $$
    select case
        when bounced_at is not null then null
        when delivers_at_once(provider) then case when state = 'sent' then decided_at end
        else delivered_at
    end
$$;

-- Since when a provider has confirmed a send that has not bounced; null while none has.
create function counted_confirmed_at(provider text, delivered_at timestamptz, bounced_at timestamptz) returns timestamptz
language sql immutable parallel safe
as $$ select case when bounced_at is null and delivers_at_once(provider) is not true then delivered_at end $$;

-- Month partitions -----------------------------------------------------------------------------------------------------------

-- Gives a partition statistics of its column `month`, made from rows that are deleted again. As many rows as fill some pages: the
-- planner keeps their density until it knows better.
--
-- A partition holds one month, and the planner has to know it from the first row. Without statistics it takes `month = …` for
-- one row in two hundred, starts a join from the partition instead of from the few sends that are asked for, and compares
-- every send of a campaign with every send of a batch: measured at 870 ms instead of 6 for 500 of 10,000. Autovacuum would
-- come up to a minute late, when a small campaign should be over.
--
-- Creating an index on `sends` or `events` counts the rows of all partitions and finds none in those of future months. The planner
-- then takes these for empty however full they get, until autovacuum comes by. So a partition that has pages and is said to have no
-- rows gets its statistics again, each time partitions are made ahead. A migration that creates such an index calls
-- `ensure_partitions` after it.
create function seed_month_statistics(partition_name text, first date) returns void
language plpgsql security definer set search_path from current
as $$
begin
    if exists (select from pg_stats where schemaname = current_schema() and tablename = partition_name and attname = 'month')
       and exists (select from pg_class where oid = to_regclass(partition_name) and (reltuples > 0 or relpages = 0))
    then
        return;
    end if;
    if partition_name like 'sends\_%' then
        execute format(
            'insert into %I (tenant_id, id, month, contact_id) select $1, gen_random_uuid(), $2, $1 from generate_series(1, 200)',
            partition_name) using '00000000-0000-0000-0000-000000000000'::uuid, first;
    else
        execute format(
            'insert into %I (tenant_id, send_id, id, month, type, occurred_at) select $1, $1, gen_random_uuid(), $2, '''', now() from generate_series(1, 200)',
            partition_name) using '00000000-0000-0000-0000-000000000000'::uuid, first;
    end if;
    execute format('analyze %I (month)', partition_name);
    execute format('delete from %I where tenant_id = $1', partition_name) using '00000000-0000-0000-0000-000000000000'::uuid;
end $$;
revoke execute on function seed_month_statistics(text, date) from public;

-- Makes the partitions from this month to `months_ahead` months later. Run here and daily by the audience stage.
-- A new partition needs `sends` and `events` for itself for a moment: every other statement would wait behind it for the longest
-- transaction that reads them. So it gives up after two seconds; the sweep tries again within the hour, and months are made ahead.
create function ensure_partitions(months_ahead integer) returns integer
language plpgsql security definer set search_path from current set lock_timeout = '2s'
as $$
declare
    first date;
    made integer := 0;
    suffix text;
begin
    perform pg_advisory_xact_lock(hashtext('postrider ensure_partitions'));
    for n in 0..months_ahead loop
        first := (date_trunc('month', (now() at time zone 'utc')) + make_interval(months => n))::date;
        suffix := to_char(first, 'YYYY_MM');
        if to_regclass('sends_' || suffix) is null then
            -- A send is written three times, each time longer. At a third, a page has room for all of it (98 % of a campaign's updates are HOT; at
            -- 50, where the overflow goes to new pages, 80 %), and the table is as small.
            execute format(
                'create table %I partition of sends for values from (%L) to (%L) with (fillfactor = 33, autovacuum_vacuum_scale_factor = 0.05)',
                'sends_' || suffix, first, (first + interval '1 month')::date);
            made := made + 1;
        end if;
        if to_regclass('events_' || suffix) is null then
            execute format(
                'create table %I partition of events for values from (%L) to (%L)',
                'events_' || suffix, first, (first + interval '1 month')::date);
            made := made + 1;
        end if;
        perform seed_month_statistics('sends_' || suffix, first);
        perform seed_month_statistics('events_' || suffix, first);
    end loop;
    return made;
end $$;
revoke execute on function ensure_partitions(integer) from public;
grant execute on function ensure_partitions(integer) to postrider_stages;
select ensure_partitions(3);

-- Retention drops whole months of the ledger; all other rows go in slices (`audience::retention` has the list).

-- Months whose sends and events are gone. The counters of campaigns stay (`fold_batches`): a recount leaves these months out.
create table dropped_months (
    month date primary key
);
grant select on dropped_months to postrider_ingress, postrider_stages;

-- Transactional and one-off mail is rendered from its request, and sent with its attachments, when it is its turn, however long its tenant is
-- paused. Answers the time before which such rows of a tenant may be removed: this time, or that of its oldest open mail, less an hour,
-- because ids are of another machine's clock. Null for null. Served by requests_waiting and batches_open, with one look for each state.
create function before_open_mail(of_tenant uuid, moment timestamptz) returns timestamptz
language sql stable strict parallel safe
as $$
    select least(moment, min(o.since) - interval '1 hour')
    from (
        select (select min(r.due_at) from requests r
                where r.tenant_id = of_tenant and r.kind = k.kind and r.announce_after is not null) as since
        from unnest(array['transactional', 'message']) k (kind)
        union all
        -- An id begins with its milliseconds.
        select to_timestamp(('x' || lpad(left(replace(b.id::text, '-', ''), 12), 16, '0'))::bit(64)::bigint / 1000.0)
        from unnest(array['priority', 'bulk']) l (lane)
        cross join unnest(array['timed', 'waiting', 'announced', 'resting']) s (state)
        cross join lateral (
            select b.id from batches b
            where b.lane = l.lane and b.state = s.state and b.state <> 'done' and b.tenant_id = of_tenant
              and b.kind in ('transactional', 'one_off', 'test')
            order by b.id limit 1
        ) b
    ) o
$$;
grant execute on function before_open_mail(uuid, timestamptz) to postrider_stages;

-- The smallest id that begins with this time: ids of the ledger are ordered by time. None is older than 1970.
create function first_id_at(moment timestamptz) returns uuid
language sql immutable strict parallel safe
as $$ select (lpad(to_hex((greatest(extract(epoch from moment), 0) * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid $$;

-- The last id a send of this batch can have: a send's id is its batch's with its position in the low nine bits (`SendId`).
create function last_id_of(batch uuid) returns uuid
language sql immutable parallel safe
as $$ select (left(batch::text, 33) || lpad(to_hex(('x' || right(batch::text, 3))::bit(12)::integer | 511), 3, '0'))::uuid $$;

-- The oldest month there is a partition for; null without any.
create function oldest_ledger_month() returns date
language sql stable
as $$
    select min(to_date(right(c.relname, 7), 'YYYY_MM'))
    from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'sends'::regclass
$$;
grant execute on function oldest_ledger_month() to postrider_ingress, postrider_stages;

-- Adds the counters of these batches of a tenant's campaigns to the first batch of their campaign and variant, and deletes them: when their
-- sends are gone, only the sums are asked for. Answers which.
create function fold_batches(of_tenant uuid, folded uuid[]) returns setof uuid
language sql volatile
as $$
    with gone as (
        delete from batches b where b.tenant_id = of_tenant and b.id = any (folded)
        returning *
    ), added as (
        select (select f.id from batches f
                where f.tenant_id = of_tenant and f.campaign_id = g.campaign_id and f.variant is not distinct from g.variant
                order by f.id limit 1) as id,
               g.*
        from (
            select campaign_id, variant, sum(size) as size, sum(sent) as sent, sum(failed) as failed, sum(unknown) as unknown,
                   sum(skipped) as skipped, sum(cancelled) as cancelled, sum(expired) as expired, sum(delivered) as delivered,
                   sum(confirmed) as confirmed, sum(bounced) as bounced, sum(complained) as complained, sum(opened) as opened,
                   sum(opened_human) as opened_human, sum(clicked) as clicked, sum(clicked_human) as clicked_human,
                   sum(replied) as replied, sum(unsubscribed) as unsubscribed
            from gone
            group by campaign_id, variant
        ) g
    ), kept as (
        update batches b
        set size = b.size + a.size, sent = b.sent + a.sent, failed = b.failed + a.failed, unknown = b.unknown + a.unknown,
            skipped = b.skipped + a.skipped, cancelled = b.cancelled + a.cancelled, expired = b.expired + a.expired,
            delivered = b.delivered + a.delivered, confirmed = b.confirmed + a.confirmed, bounced = b.bounced + a.bounced,
            complained = b.complained + a.complained, opened = b.opened + a.opened, opened_human = b.opened_human + a.opened_human,
            clicked = b.clicked + a.clicked, clicked_human = b.clicked_human + a.clicked_human, replied = b.replied + a.replied,
            unsubscribed = b.unsubscribed + a.unsubscribed
        from added a
        where b.tenant_id = of_tenant and b.id = a.id
    )
    select id from gone
$$;
grant execute on function fold_batches(uuid, uuid[]) to postrider_stages;

-- Takes one step towards a ledger without the months that ended before `keep_from`, and answers the month it was about; null when
-- there is nothing to do. A month with a batch that is still open stays: the caller ends its mail first (`end_old_months`). Detaching
-- needs the whole table for a moment: it waits two seconds for that, and otherwise fails and is tried again. Dropping, which takes as
-- long as the files are large, is a separate step and locks nothing that is in use.
create function drop_ledger_month(keep_from date) returns date
language plpgsql security definer set search_path from current set lock_timeout = '2s'
as $$
declare
    old date;
    suffix text;
    detached text;
begin
    perform pg_advisory_xact_lock(hashtext('postrider ensure_partitions'));
    select c.relname into detached
    from pg_class c
    where c.relnamespace = (select p.relnamespace from pg_class p where p.oid = 'sends'::regclass)
      and c.relkind = 'r' and not c.relispartition and c.relname ~ '^(sends|events)_[0-9]{4}_[0-9]{2}$'
    order by c.relname limit 1;
    if detached is not null then
        execute format('drop table %I', detached);
        return to_date(right(detached, 7), 'YYYY_MM');
    end if;
    old := oldest_ledger_month();
    if old is null or old >= keep_from or old + interval '1 month' > keep_from then
        return null;
    end if;
    -- First without a lock: a month that has to wait keeps nothing else waiting.
    if exists (select from batches b where b.state <> 'done' and b.month = old) then
        return null;
    end if;
    -- What opens a batch again, as a retry does, holds `sends` until it is committed. Not the partition before its parent: statements lock
    -- them in the other order.
    lock table only sends in access exclusive mode;
    if exists (select from batches b where b.state <> 'done' and b.month = old) then
        return null;
    end if;
    suffix := to_char(old, 'YYYY_MM');
    execute format('alter table sends detach partition %I', 'sends_' || suffix);
    if to_regclass('events_' || suffix) is not null then
        execute format('alter table events detach partition %I', 'events_' || suffix);
    end if;
    insert into dropped_months (month) values (old) on conflict do nothing;
    return old;
end $$;
revoke execute on function drop_ledger_month(date) from public;
grant execute on function drop_ledger_month(date) to postrider_stages;

-- The gate -------------------------------------------------------------------------------------------------------------------

-- A cancel, a pause or a suspension that was committed is seen by every fence that is committed later.
--
-- A fence holds its tenant's gate, shared, from before it reads campaign, sequence, tenant, domain and sender until it is committed. Whatever
-- stops sending closes the gate: it waits for the fences that have read, and keeps the gate closed until it is committed. These are
-- advisory locks and not row locks: transactions that share a row lock pass one that waits to change the row, which under load would
-- wait for long. A fence only tries: behind a closed gate it is asked again, and other tenants' mail does not wait.
--
-- There are 64 gates: a group of fences takes no more locks than that, and two tenants that share a gate wait for each other a moment.
create function gate_of(of_tenant uuid) returns integer
language sql immutable parallel safe
as $$ select uuid_hash(of_tenant) & 63 $$;

create function try_gate(of_tenant uuid) returns boolean
language sql volatile
as $$ select pg_try_advisory_xact_lock_shared(hashtext('postrider gate'), gate_of(of_tenant)) $$;

-- To be called before the tenant's own row is locked: a fence that holds the gate may wait for that row, where the tenant has a quota.
create function close_gate(of_tenant uuid) returns void
language sql volatile
as $$ select pg_advisory_xact_lock(hashtext('postrider gate'), gate_of(of_tenant)) $$;

-- By trigger, so that every statement that stops sending does it.
create function close_gate_of_row() returns trigger
language plpgsql
as $$
begin
    if tg_table_name = 'tenants' then
        perform close_gate(new.id);
    else
        perform close_gate(new.tenant_id);
    end if;
    return new;
end $$;
create trigger campaigns_close_gate before update of status, paused on campaigns
    for each row when (new.status = 'cancelled' and old.status <> 'cancelled' or new.paused and not old.paused)
    execute function close_gate_of_row();
create trigger tenants_close_gate before update of status, paused_at on tenants
    for each row when (new.status <> 'active' and old.status = 'active' or new.paused_at is not null and old.paused_at is null)
    execute function close_gate_of_row();
create trigger domains_close_gate before update of status on domains
    for each row when (new.status not in ('verified', 'degraded') and old.status in ('verified', 'degraded'))
    execute function close_gate_of_row();
create trigger senders_close_gate before update of status, domain_id on senders
    for each row when (new.status <> 'active' and old.status = 'active' or new.domain_id <> old.domain_id)
    execute function close_gate_of_row();
