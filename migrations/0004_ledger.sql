-- The ledger: requests, campaigns, batches, sends, events, rollups.

-- Accepted commands. A row is here before anything is announced; `announce_after` says when the sweep rings again.
create table requests (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    product text not null,
    environment text not null,
    kind text not null check (kind in ('campaign-launch', 'transactional')),
    payload jsonb not null,
    state text not null default 'accepted' check (state in ('accepted', 'handled', 'rejected')),
    outcome text,                               -- why rejected, or what became of it
    announce_after timestamptz,                 -- null once handled
    announcements integer not null default 0,
    received_at timestamptz not null default now(),
    handled_at timestamptz,
    primary key (tenant_id, id)
);
create index requests_due on requests (announce_after) where announce_after is not null;

create table campaigns (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    product text not null,
    environment text not null,
    name text not null,
    sender_profile_id uuid not null,
    template_id uuid,
    subject text,
    preheader text,
    body_html text,
    content_id uuid not null,                   -- what would be rendered now; batches pin it at launch
    campaign_goal text,
    audience_mode text not null check (audience_mode in ('list', 'segment', 'tags')),
    list_id uuid,
    segment_id uuid,
    tag_ids uuid[] not null default '{}',
    message_purpose text not null,
    classification text not null check (classification in ('marketing', 'operational', 'transactional')),
    urgency text not null default 'normal',
    audience_reason text,
    status text not null default 'draft' check (status in ('draft', 'preflight', 'scheduled', 'sending', 'sent', 'cancelled')),
    paused boolean not null default false,
    pause_reason text,
    scheduled_for timestamptz,
    launched_at timestamptz,
    launch_prefix text,                         -- common hex prefix of the ids of its sends
    month date,                                 -- the partition its sends live in
    materialized_at timestamptz,                -- the audience stands in `sends`
    completed_at timestamptz,
    counts jsonb,                               -- rolled up when done; before that the batches are summed
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (tenant_id, id),
    foreign key (tenant_id, sender_profile_id) references senders (tenant_id, id),
    foreign key (tenant_id, template_id) references templates (tenant_id, id),
    foreign key (tenant_id, content_id) references contents (tenant_id, id),
    foreign key (tenant_id, list_id) references audiences (tenant_id, id)
);
create index campaigns_newest on campaigns (tenant_id, created_at desc, id desc);
create index campaigns_by_status on campaigns (tenant_id, status, created_at desc, id desc);
create index campaigns_running on campaigns (status) where status in ('sending', 'scheduled', 'cancelled') and completed_at is null;

-- The durable work list: at most 500 sends of one message, handed on together.
--   waiting    not handed on yet                      (the audience stage hands it on, tenants in turn)
--   announced  handed on; rung again at announce_after until nothing is open
--   resting    all that is open is deferred; rung again at announce_after
--   done       nothing is open
-- The counters are one number per send state and per fact, kept in the transaction that changes the sends, and equal a
-- recount. They stand here and not on the campaign, so that delivery workers do not queue for one row.
create table batches (
    tenant_id uuid not null references tenants (id),
    id uuid not null,                           -- low nine bits zero; a send's id is this plus its ordinal
    month date not null,                        -- the partition of its sends
    kind text not null check (kind in ('campaign', 'sequence', 'transactional', 'one_off')),
    lane text not null check (lane in ('priority', 'bulk')),
    classification text not null check (classification in ('marketing', 'operational', 'transactional')),
    campaign_id uuid,
    content_id uuid not null,
    sender_id uuid not null,
    variant text,
    state text not null default 'waiting' check (state in ('waiting', 'announced', 'resting', 'done')),
    announce_after timestamptz,                 -- null when waiting or done
    announcement integer not null default 0,
    lease_until timestamptz,                    -- the latest lease among its claimed and fenced sends
    size integer not null,
    queued integer not null default 0,
    claimed integer not null default 0,
    fenced integer not null default 0,
    deferred integer not null default 0,
    sent integer not null default 0,
    failed integer not null default 0,
    unknown integer not null default 0,
    skipped integer not null default 0,
    cancelled integer not null default 0,
    expired integer not null default 0,
    delivered integer not null default 0,
    bounced integer not null default 0,
    complained integer not null default 0,
    opened integer not null default 0,
    clicked integer not null default 0,
    unsubscribed integer not null default 0,
    created_at timestamptz not null default now(),
    done_at timestamptz,
    primary key (tenant_id, id),
    foreign key (tenant_id, campaign_id) references campaigns (tenant_id, id),
    foreign key (tenant_id, content_id) references contents (tenant_id, id),
    foreign key (tenant_id, sender_id) references senders (tenant_id, id),
    constraint batches_counters_add_up check (
        queued + claimed + fenced + deferred + sent + failed + unknown + skipped + cancelled + expired = size
        and least(queued, claimed, fenced, deferred, sent, failed, unknown, skipped, cancelled, expired) >= 0
    )
) with (fillfactor = 70);
create index batches_by_campaign on batches (tenant_id, campaign_id, id);
create index batches_open on batches (lane, state, tenant_id, id) where state <> 'done';

-- One row per recipient of one message, written before anything is sent. States: see DESIGN and the README.
-- No index on `state`: work is found through `batches`, and updates stay HOT. No foreign keys: rows are made by set-based
-- statements from the very tables they would point to, at half a million a second.
create table sends (
    tenant_id uuid not null,
    id uuid not null,                           -- batch id + ordinal
    month date not null,                        -- of the id's timestamp
    campaign_id uuid,
    request_id uuid,
    contact_id uuid not null,
    state text not null default 'queued',
    reason text,                                -- skip_reason of skipped, failure class of failed
    attempts smallint not null default 0,
    doubtful smallint not null default 0,       -- how often it ended in `unknown`
    claim_token uuid,
    lease_until timestamptz,
    fenced_at timestamptz,
    next_attempt_at timestamptz,
    decided_at timestamptz,                     -- when it reached the state it is in, if that is an end state
    smtp_code smallint,
    enhanced_code text,
    response text,                              -- the server's last words, cut to 500 characters
    delivered_at timestamptz,
    bounced_at timestamptz,
    complained_at timestamptz,
    opened_at timestamptz,
    clicked_at timestamptz,
    unsubscribed_at timestamptz,
    primary key (tenant_id, id, month)
) partition by range (month);
-- Nobody is mailed twice: one send per contact (and so per canonical address) and campaign, or request.
create unique index sends_once_per_campaign on sends (tenant_id, campaign_id, contact_id, month) where campaign_id is not null;
create unique index sends_once_per_request on sends (tenant_id, request_id, contact_id, month) where request_id is not null;

-- Append-only facts about sends, in the partition of the send's launch. The key starts with the send, so a send's timeline
-- is one index range and a repeated signal is refused by the same index.
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

-- What was rendered for one priority send, kept until it is decided, so that a second attempt has the same bytes.
create table renditions (
    tenant_id uuid not null references tenants (id),
    send_id uuid not null,
    rendered jsonb not null,
    created_at timestamptz not null default now(),
    primary key (tenant_id, send_id)
);
create index renditions_by_age on renditions (created_at);

-- Totals per tenant, day and kind of message. `shard` spreads writers of one tenant over several rows; readers sum.
create table rollups (
    tenant_id uuid not null references tenants (id),
    day date not null,
    kind text not null,
    event text not null,
    shard smallint not null,
    count bigint not null,
    primary key (tenant_id, day, kind, event, shard)
) with (fillfactor = 50);

-- Makes the month partitions from this month to `months_ahead` later. Run at migration and daily by the audience stage.
create function ensure_partitions(months_ahead integer) returns integer
language plpgsql security definer set search_path from current
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
            execute format(
                'create table %I partition of sends for values from (%L) to (%L) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05)',
                'sends_' || suffix, first, (first + interval '1 month')::date);
            made := made + 1;
        end if;
        if to_regclass('events_' || suffix) is null then
            execute format(
                'create table %I partition of events for values from (%L) to (%L)',
                'events_' || suffix, first, (first + interval '1 month')::date);
            made := made + 1;
        end if;
    end loop;
    return made;
end $$;
select ensure_partitions(3);
