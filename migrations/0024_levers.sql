-- What an operator holds back, what tells a restored ledger from the one that was mailed from, and who did what.

-- Stages that start nothing new: they neither fetch nor look for work, and finish what they have in hand. No row, no pause.
create table stage_pauses (
    stage text primary key,                     -- audience, …, sequencing
    actor text not null,                        -- who: user@host, or as he said
    reason text,
    paused_at timestamptz not null default now()
);
grant select on stage_pauses to postrider_ingress;
grant select, insert, update, delete on stage_pauses to postrider_stages;

-- A paused tenant: its requests are accepted, and nothing of it passes the fence until it is resumed. Its work waits; a suspended
-- tenant's is skipped.
alter table tenants
    add column paused_at timestamptz,
    add column pause_actor text,
    add column pause_reason text,
    -- Resumed, and of its batches some are still put aside that nobody else would hand on.
    add column wakes boolean not null default false,
    add constraint tenants_wake_when_resumed check (not wakes or paused_at is null);
create index tenants_paused on tenants (paused_at) where paused_at is not null;
create index tenants_waking on tenants (id) where wakes;

-- One row: which ledger this is, where it lives and how far it has come. Processes move `mark` on every few seconds and tell it to
-- the bus. A ledger that is behind what the bus was told, or lives elsewhere, was restored: what it holds as owed may be sent.
create table ledger (
    only_one boolean primary key default true check (only_one),
    id uuid not null default gen_random_uuid(),
    place text,                                 -- cluster:database:timeline, as a process last saw it
    mark bigint not null default 0,
    marked_at timestamptz not null default now(),
    -- Held: nothing leaves until somebody who knows releases it. The gap is the time that is missing.
    held_at timestamptz,
    held_by text,
    held_reason text,
    gap_from timestamptz,
    gap_to timestamptz
);
insert into ledger default values;
grant select on ledger to postrider_ingress;
grant select, update on ledger to postrider_stages;

-- What operators did, why, and what came of it, newest first. Not in `detail`: of some actions that is told to the tenant.
alter table audit_log add column reason text, add column outcome text;
create index audit_log_newest on audit_log (at desc, id desc);

-- What a drain waits for.
alter table heartbeats
    add column name text,                       -- how the process calls itself: all, ingress, audience+compliance, …
    add column paused boolean not null default false,
    add column in_hand integer not null default 0;

-- As in 0011, and what a paused tenant has open rests on purpose, too.
create or replace function platform_backlog() returns table (
    requests_accepted bigint, requests_oldest double precision, priority_open bigint, priority_oldest double precision,
    bulk_announced bigint, bulk_announcements_max integer, bulk_waiting bigint
)
language sql stable security definer set search_path from current
as $$
    select r.accepted, r.oldest, p.open, p.oldest, b.announced, b.announcements, w.waiting
    from (select count(*) as accepted, extract(epoch from now() - min(received_at))::double precision as oldest
          from (select received_at from requests where announce_after is not null and state = 'accepted' limit 10000) q) r
    cross join (select count(*) as open, extract(epoch from now() - min(q.created_at))::double precision as oldest
          from (select b.created_at
                from batches b join tenants t on t.id = b.tenant_id and t.status = 'active' and t.paused_at is null
                where b.lane = 'priority' and b.state in ('waiting', 'announced') limit 10000) q) p
    cross join (select count(*) as announced, max(q.announcement) as announcements
          from (select b.announcement from batches b
                where b.lane = 'bulk' and b.state = 'announced'
                  and not exists (select from campaigns c where c.tenant_id = b.tenant_id and c.id = b.campaign_id and c.paused)
                  and exists (select from tenants t where t.id = b.tenant_id and t.status = 'active' and t.paused_at is null)
                limit 10000) q) b
    cross join (select count(*) as waiting
          from (select from batches where lane = 'bulk' and state = 'waiting' limit 10000) q) w
$$;

-- What is held back, for the health check of the ingress, which sees no tenant but one at a time.
create function platform_pauses() returns table (stages text[], tenants bigint, held_at timestamptz, held_reason text)
language sql stable security definer set search_path from current
as $$
    select (select coalesce(array_agg(p.stage order by p.stage), '{}') from stage_pauses p),
           (select count(*) from (select from tenants t where t.paused_at is not null limit 10000) q),
           l.held_at, l.held_reason
    from ledger l
$$;
revoke execute on function platform_pauses() from public;
grant execute on function platform_pauses() to postrider_ingress, postrider_stages;
