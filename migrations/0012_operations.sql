-- Operations: processes and pauses, the ledger epoch, traces, and the platform's health.

-- Which processes run which stage. Each row is renewed every few seconds and swept when it has long been silent. No index but the key: an
-- indexed `seen_at` would make each renewal write the index, too, and the few rows are read in one go.
create table heartbeats (
    process_id uuid not null,                   -- made at start
    stage text not null,                        -- audience, …, ingress
    name text,                                  -- the process's name for itself: all, ingress, audience+compliance, …
    version text not null,
    settings text[] not null default '{}',      -- which settings it was given: names only
    failing_sweeps text[] not null default '{}',    -- sweeps whose last run failed
    -- What a drain waits for.
    paused boolean not null default false,
    in_hand integer not null default 0,
    seen_at timestamptz not null default now(),
    primary key (process_id, stage)
);
grant select, insert, update, delete on heartbeats to postrider_stages;
grant select, insert, update, delete on heartbeats to postrider_ingress;

-- Paused stages start nothing new: they neither fetch nor sweep, and finish the work in progress. No row, no pause.
create table stage_pauses (
    stage text primary key,                     -- audience, …, sequencing
    actor text not null,                        -- the operator: user@host, or the name given
    reason text,
    paused_at timestamptz not null default now()
);
grant select on stage_pauses to postrider_ingress;
grant select, insert, update, delete on stage_pauses to postrider_stages;

-- The ledger epoch. One row: which ledger this is, where it lives and how far it has come. Processes increase `mark` every few
-- seconds and publish it to the bus. A ledger that is behind what the bus knows, or lives elsewhere, was restored: mail it holds as
-- owed may have been sent already.
create table ledger (
    only_one boolean primary key default true check (only_one),
    id uuid not null default gen_random_uuid(),
    place text,                                 -- cluster:database:timeline, as a process last saw it
    mark bigint not null default 0,
    marked_at timestamptz not null default now(),
    -- Paused: no mail leaves until an operator releases it. The gap is the time that is missing.
    held_at timestamptz,
    held_by text,
    held_reason text,
    gap_from timestamptz,
    gap_to timestamptz
);
insert into ledger default values;
grant select on ledger to postrider_ingress;
grant select, update on ledger to postrider_stages;

-- Messages of the bus that were delivered more than once, and how often a process has begun to handle each since it last finished
-- with it. A row is deleted when handling ends, well or not: a row that stays belongs to a process that died while it handled the
-- message.
create table message_starts (
    stream text not null,
    consumer text not null,
    sequence bigint not null,
    published_at timestamptz not null,          -- of the message: a stream that was made again counts from 1
    starts integer not null,
    started_at timestamptz not null default now(),
    primary key (stream, consumer, sequence)
);
-- What the retention sweep finds the starts of messages by that never came again.
create index message_starts_by_age on message_starts (started_at);
grant select, insert, update, delete on message_starts to postrider_stages;

-- The trace a piece of work was requested in, where the caller had one (W3C Trace Context), so that what a sweep announces from the
-- ledger continues it. Nearly always empty: only traced work has a row. Ids and the caller's own marks, no personal data. Kept for
-- seven days, longer than a mail is tried for; a campaign that is scheduled further ahead starts a trace of its own.
create table traces (
    tenant_id uuid not null references tenants (id),
    work_id uuid not null,                      -- the request, the campaign, or the batch
    traceparent text not null check (length(traceparent) = 55),
    tracestate text check (length(tracestate) <= 512),
    kept_at timestamptz not null default now(),
    primary key (tenant_id, work_id)
);
create index traces_by_age on traces (kept_at);
select enable_row_security('traces');

-- The platform's health ------------------------------------------------------------------------------------------------------
--
-- Numbers over all tenants, for metrics and the health check. The ingress sees one tenant at a time; these functions answer sums, no
-- rows. Ages are in seconds; null where there is nothing. Work is counted up to 10,000 and found by an index, however large the
-- tables are. What a paused campaign, a paused or a suspended tenant has open is not owed.

-- What happened within the last hour or two.
create function platform_totals() returns table (kind text, event text, count bigint)
language sql stable security definer set search_path from current
as $$
    select r.kind, r.event, sum(r.count)::bigint from rollups r
    where r.hour >= date_trunc('hour', now() - interval '1 hour', 'UTC')
    group by r.kind, r.event
$$;

create function platform_domains() returns table (verified bigint, degraded bigint, failed bigint, suspended bigint, stale bigint)
language sql stable security definer set search_path from current
as $$
    select count(*) filter (where status = 'verified'), count(*) filter (where status = 'degraded'),
           count(*) filter (where status = 'failed'), count(*) filter (where status = 'suspended'),
           count(*) filter (where status in ('verified', 'degraded')
                              and coalesce(last_checked_at, verified_at, created_at) < now() - interval '48 hours')
    from domains where environment = 'production'
$$;

-- Since when the oldest event waits that is not yet a delivery, or not yet on the bus. Asked by the functions below, which see all tenants'.
create function oldest_unpublished() returns timestamptz
language sql stable
as $$
    select least((select noted_at from outbox where noted_at <= now() order by id limit 1),
                 (select noted_at from feed_notes order by id limit 1))
$$;

-- `unfanned` is the age of the oldest event that is not yet a delivery, or not yet on the bus. The oldest delivery is the oldest of the
-- first of each subscription, found by jumping along the queue's key. What is due is counted from there: what a pause holds is not read.
create function platform_webhooks() returns table (
    active bigint, failing bigint, due bigint, oldest double precision, unfanned double precision,
    delivered bigint, failed bigint, dead bigint, disabled bigint
)
language sql stable security definer set search_path from current
as $$
    with recursive heads as (
        (select q.tenant_id, q.subscription_id, q.due_at from webhook_queue q
         order by q.tenant_id, q.subscription_id, q.due_at limit 1)
        union all
        select n.tenant_id, n.subscription_id, n.due_at
        from heads h
        cross join lateral (
            select q.tenant_id, q.subscription_id, q.due_at from webhook_queue q
            where (q.tenant_id, q.subscription_id) > (h.tenant_id, h.subscription_id)
            order by q.tenant_id, q.subscription_id, q.due_at limit 1
        ) n
    )
    select s.active, s.failing, q.due, h.oldest, o.unfanned, t.delivered, t.failed, t.dead, t.disabled
    from (select count(*) as active, count(*) filter (where failing_since < now() - interval '1 hour') as failing
          from webhook_subscriptions where status = 'active') s
    cross join (select count(*) as due
          from (select from heads h
                join webhook_subscriptions w on w.tenant_id = h.tenant_id and w.id = h.subscription_id and w.status = 'active'
                cross join lateral (
                    select from webhook_queue q
                    where q.tenant_id = h.tenant_id and q.subscription_id = h.subscription_id and q.due_at <= now()
                    limit 10000
                ) d
                limit 10000) d) q
    cross join (select extract(epoch from now() - min(h.due_at))::double precision as oldest
          from heads h
          join webhook_subscriptions w on w.tenant_id = h.tenant_id and w.id = h.subscription_id and w.status = 'active'
          where h.due_at <= now()) h
    cross join (select extract(epoch from now() - oldest_unpublished())::double precision as unfanned) o
    cross join (select coalesce(sum(count) filter (where outcome = 'delivered'), 0)::bigint as delivered,
                       coalesce(sum(count) filter (where outcome = 'failed'), 0)::bigint as failed,
                       coalesce(sum(count) filter (where outcome = 'dead'), 0)::bigint as dead,
                       coalesce(sum(count) filter (where outcome = 'disabled'), 0)::bigint as disabled
          from webhook_totals where hour >= date_trunc('hour', now() - interval '1 hour', 'UTC')) t
$$;

-- Throttle keys with a reduced rate, how many of them have sent nothing for an hour, and domains in warm-up.
create function platform_pacing() returns table (throttled bigint, stalled bigint, slowest double precision, warming bigint)
language sql stable security definer set search_path from current
as $$
    select p.throttled, p.stalled, p.slowest, w.warming
    from (select count(*) as throttled,
                 count(*) filter (where coalesce(q.good_at, q.throttled_since) < now() - interval '1 hour') as stalled,
                 min(q.rate) as slowest
          from (select throttled_since, good_at, rate from live_paces limit 10000) q) p
    cross join (select count(*) as warming from (select from domain_warmups where is_on limit 10000) q) w
$$;

-- Pauses by operators.
create function platform_pauses() returns table (stages text[], tenants bigint, held_at timestamptz, held_reason text)
language sql stable security definer set search_path from current
as $$
    select (select coalesce(array_agg(p.stage order by p.stage), '{}') from stage_pauses p),
           (select count(*) from (select from tenants t where t.paused_at is not null limit 10000) q),
           l.held_at, l.held_reason
    from ledger l
$$;

-- Batches that are not done, by lane and state. `oldest` leaves out paused work and that of tenants whose own connection does not serve; a
-- batch that was timed, deferred or set aside is as old as its return. Served by `batches_open`.
create function platform_batches() returns table (
    lane text, state text, batches bigint, announcements integer, oldest double precision
)
language sql stable security definer set search_path from current set enable_seqscan = off
as $$
    select l.lane, s.state, coalesce(sum(g.batches), 0)::bigint, coalesce(max(g.announcements) filter (where g.owed), 0),
           extract(epoch from now() - min(g.oldest) filter (where g.owed))::double precision
    from unnest(array['priority', 'bulk']) as l (lane)
    cross join unnest(array['timed', 'waiting', 'announced', 'resting']) as s (state)
    left join lateral (
        select t.batches, t.announcements, t.oldest,
               exists (select from tenants n where n.id = t.tenant_id and n.status = 'active' and n.paused_at is null)
               and not exists (
                   select from campaigns c where c.tenant_id = t.tenant_id and c.id = t.campaign_id and c.paused)
               and not exists (
                   select from provider_connections p
                   join connection_health h on h.tenant_id = p.tenant_id and h.connection_id = p.id
                   where p.tenant_id = t.tenant_id and p.is_default and p.status = 'active'
                     and h.open_until > now() - interval '10 minutes') as owed
        from (
            select q.tenant_id, q.campaign_id, count(*) as batches, max(q.announcement) as announcements,
                   min(greatest(q.created_at, q.due_at, q.quiet_at)) as oldest
            from (
                select b.tenant_id, b.campaign_id, b.announcement, b.created_at, b.due_at, b.quiet_at
                from batches b
                where b.lane = l.lane and b.state = s.state and b.state <> 'done'
                limit 100000
            ) q
            group by q.tenant_id, q.campaign_id
        ) t
    ) g on true
    group by l.lane, s.state
$$;

-- Requests that are due and not handled, by kind: up to 10,000 of each, and the oldest of all, found by jumping from each tenant's first
-- of a kind to the next along `requests_waiting`. A launch waits for those of its tenant before it, and takes its time: it is old when three
-- announcements did not help, or nobody announces it.
create function platform_requests() returns table (kind text, requests bigint, oldest double precision)
language sql stable security definer set search_path from current set enable_seqscan = off
as $$
    with recursive heads as (
        (select r.tenant_id, r.kind, r.due_at, r.announcements, r.announce_after from requests r
         where r.announce_after is not null and r.state = 'accepted'
         order by r.tenant_id, r.kind, r.due_at limit 1)
        union all
        select n.tenant_id, n.kind, n.due_at, n.announcements, n.announce_after
        from heads h
        cross join lateral (
            select r.tenant_id, r.kind, r.due_at, r.announcements, r.announce_after from requests r
            where r.announce_after is not null and r.state = 'accepted' and (r.tenant_id, r.kind) > (h.tenant_id, h.kind)
            order by r.tenant_id, r.kind, r.due_at limit 1
        ) n
    )
    select k.kind, n.requests, extract(epoch from now() - k.oldest)::double precision
    from (select h.kind, min(h.due_at) filter (
                     where h.kind <> 'campaign-launch' or h.announcements >= 3 or h.announce_after < now() - interval '1 minute') as oldest
          from heads h where h.due_at <= now() group by h.kind) k
    cross join lateral (
        select count(*) as requests
        from (
            select from heads h
            cross join lateral (
                select from requests r
                where r.announce_after is not null and r.state = 'accepted'
                  and r.tenant_id = h.tenant_id and r.kind = h.kind and r.due_at <= now()
                offset 0
            ) r
            where h.kind = k.kind and h.due_at <= now()
            limit 10000
        ) q
    ) n
$$;

-- Sends of the last seven days whose outcome is unknown, by lane; the age is that of the unknown outcome, searched in the oldest twenty
-- batches. Served by `batches_unknown` and the primary key of `sends`.
create function platform_unknown() returns table (lane text, sends bigint, oldest double precision)
language sql stable security definer set search_path from current set enable_seqscan = off
as $$
    with since as materialized (
        select first_id_at(now() - interval '7 days') as id
    )
    select l.lane, n.sends, extract(epoch from now() - o.since)::double precision
    from unnest(array['priority', 'bulk']) as l (lane)
    cross join lateral (
        select coalesce(sum(q.unknown), 0)::bigint as sends
        from (
            select b.unknown from batches b, since where b.lane = l.lane and b.unknown > 0 and b.id >= since.id limit 10000
        ) q
    ) n
    cross join lateral (
        select min(d.since) as since
        from (
            select b.tenant_id, b.id, b.month from batches b, since
            where b.lane = l.lane and b.unknown > 0 and b.id >= since.id
            order by b.id limit 20
        ) b
        cross join lateral (
            select min(coalesce(s.decided_at, s.fenced_at)) as since from sends s
            where s.tenant_id = b.tenant_id and s.month = b.month and s.state = 'unknown'
              and s.id between b.id and last_id_of(b.id)
            offset 0
        ) d
    ) o
$$;

-- The oldest work each stage but delivery owes, null where it owes none. What delivery owes is every batch that was made and is open
-- (`platform_batches`): whether compliance, rendering or delivery has it, the streams show.
create function platform_owed() returns table (stage text, lane text, oldest double precision)
language sql stable security definer set search_path from current set enable_seqscan = off
as $$
    with requested as materialized (
        select case r.kind when 'outcome' then 'attribution' when 'enrollment' then 'sequencing' else 'audience' end as stage,
               case r.kind when 'campaign-launch' then 'bulk' else 'priority' end as lane, r.oldest
        from platform_requests() r
    ), timed as (
        select 'engagement' as stage, least(
                   (select e.due_at from inbound_events e where e.due_at is not null order by e.due_at, e.id limit 1),
                   (select m.due_at from inbound_mails m where m.due_at is not null order by m.due_at, m.id limit 1)) as due_at
        union all
        select 'attribution', (select o.credit_due from outcomes o where o.credit_due is not null order by o.credit_due limit 1)
        union all
        select 'webhooks', oldest_unpublished()
        union all
        select 'sequencing',
               (select e.next_action_at from enrollments e where e.status = 'active' order by e.next_action_at limit 1)
    ), owed as (
        select stage, lane, oldest from requested
        union all
        select stage, 'priority', extract(epoch from now() - due_at) from timed where due_at <= now()
    )
    select s.stage, s.lane, max(o.oldest)::double precision
    from (values ('audience', 'priority'), ('audience', 'bulk'),
                 ('engagement', 'priority'), ('attribution', 'priority'), ('webhooks', 'priority'), ('sequencing', 'priority'))
         as s (stage, lane)
    left join owed o on o.stage = s.stage and o.lane = s.lane
    group by s.stage, s.lane
$$;

-- Facts that wait for their send. Served by `pending_facts_due`.
create function platform_pending_facts() returns bigint
language sql stable security definer set search_path from current set enable_seqscan = off
as $$
    select count(*) from (select from pending_facts where due_at is not null limit 10000) q
$$;

-- Since when the confirmation is due that waits longest, for a mail or its expiry, in seconds; 0: none waits. Served by `confirmations_due`.
create function platform_confirmations() returns double precision
language sql stable security definer set search_path from current set enable_seqscan = off
as $$
    select coalesce(extract(epoch from now() - min(due_at)), 0)::double precision from confirmations where due_at <= now()
$$;

revoke execute on function platform_totals(), platform_domains(), platform_webhooks(), platform_pacing(),
    platform_pauses(), platform_batches(), platform_requests(), platform_unknown(), platform_owed(), platform_pending_facts(),
    platform_confirmations() from public;
grant execute on function platform_totals(), platform_domains(), platform_webhooks(), platform_pacing(),
    platform_pauses(), platform_batches(), platform_requests(), platform_unknown(), platform_owed(), platform_pending_facts(),
    platform_confirmations()
    to postrider_ingress, postrider_stages;
