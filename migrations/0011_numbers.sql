-- What is counted and shown: totals by hour, suppression and template totals, topics, facts for the platform's health.

-- Totals stand by the hour (UTC): a tenant's day is one of its own time zone, which only the reader knows.
--   kind   campaign | sequence | transactional | one_off, with what happened as event
--          failure, with the class or reason of failed, expired and unknown sends as event
--          suppression, with the reason of new suppressions as event
alter table rollups add column hour timestamptz;
update rollups set hour = day::timestamp at time zone 'UTC';
alter table rollups alter column hour set not null;
alter table rollups drop constraint rollups_pkey;
alter table rollups drop column day;
alter table rollups add primary key (tenant_id, hour, kind, event, shard);
create index rollups_by_hour on rollups (hour);

-- How many suppressions a tenant has, by reason. Many write suppressions, so the table itself tells: each statement leaves
-- one row per reason in an append-only log, which locks nothing and cannot deadlock; the engagement stage folds the log into
-- the totals. What a reader sees is the totals plus the log.
create table suppression_changes (
    tenant_id uuid not null references tenants (id),
    hour timestamptz not null,
    reason text not null,
    added bigint not null,
    removed bigint not null
);
create index suppression_changes_by_tenant on suppression_changes (tenant_id);
create table suppression_totals (
    tenant_id uuid not null references tenants (id),
    reason text not null,
    count bigint not null,
    primary key (tenant_id, reason)
);
select wall_off('suppression_changes');
select wall_off('suppression_totals');
-- Those that run out are few; they are taken off what the totals say when they have.
create index suppressions_that_expire on suppressions (tenant_id, expires_at) where expires_at is not null;

create function note_added_suppressions() returns trigger
language plpgsql
as $$
begin
    insert into suppression_changes (tenant_id, hour, reason, added, removed)
    select tenant_id, date_trunc('hour', now(), 'UTC'), reason, count(*), 0 from changed group by tenant_id, reason;
    return null;
end $$;
create function note_removed_suppressions() returns trigger
language plpgsql
as $$
begin
    insert into suppression_changes (tenant_id, hour, reason, added, removed)
    select tenant_id, date_trunc('hour', now(), 'UTC'), reason, 0, count(*) from changed group by tenant_id, reason;
    return null;
end $$;
create trigger suppressions_added after insert on suppressions
    referencing new table as changed for each statement execute function note_added_suppressions();
create trigger suppressions_removed after delete on suppressions
    referencing old table as changed for each statement execute function note_removed_suppressions();
insert into suppression_changes (tenant_id, hour, reason, added, removed)
select tenant_id, date_trunc('hour', created_at, 'UTC'), reason, count(*), 0 from suppressions group by 1, 2, 3;

-- The same for templates: a transactional message is a batch of one, so summing batches would be summing messages.
create table content_changes (
    tenant_id uuid not null references tenants (id),
    hour timestamptz not null,
    content_id uuid not null,
    sent integer not null,
    bounced integer not null,
    complained integer not null,
    opened integer not null,
    opened_human integer not null,
    clicked integer not null,
    clicked_human integer not null,
    unsubscribed integer not null
);
create index content_changes_by_tenant on content_changes (tenant_id);
create table content_totals (
    tenant_id uuid not null references tenants (id),
    hour timestamptz not null,
    content_id uuid not null,
    sent bigint not null,
    bounced bigint not null,
    complained bigint not null,
    opened bigint not null,
    opened_human bigint not null,
    clicked bigint not null,
    clicked_human bigint not null,
    unsubscribed bigint not null,
    primary key (tenant_id, hour, content_id)
);
select wall_off('content_changes');
select wall_off('content_totals');

create function note_content_changes() returns trigger
language plpgsql
as $$
begin
    insert into content_changes
    select n.tenant_id, date_trunc('hour', now(), 'UTC'), n.content_id, sum(n.sent - o.sent), sum(n.bounced - o.bounced),
           sum(n.complained - o.complained), sum(n.opened - o.opened), sum(n.opened_human - o.opened_human),
           sum(n.clicked - o.clicked), sum(n.clicked_human - o.clicked_human), sum(n.unsubscribed - o.unsubscribed)
    from after_it n
    join before_it o on o.tenant_id = n.tenant_id and o.id = n.id
    where n.kind = 'transactional'
      and (n.sent, n.bounced, n.complained, n.opened, n.opened_human, n.clicked, n.clicked_human, n.unsubscribed)
          <> (o.sent, o.bounced, o.complained, o.opened, o.opened_human, o.clicked, o.clicked_human, o.unsubscribed)
    group by n.tenant_id, n.content_id;
    return null;
end $$;
create trigger batches_changed after update on batches
    referencing old table as before_it new table as after_it for each statement execute function note_content_changes();

-- Campaigns of a window, for the list of top messages.
create index campaigns_by_launch on campaigns (tenant_id, launched_at desc) where launched_at is not null;

-- A list with a public name is a topic: its members see it on their preferences page, and leave and join it there.
alter table audiences
    add column public_name text,
    add column public_description text,
    add constraint audiences_topics_are_lists check (public_name is null or kind = 'list'),
    add constraint audiences_described_topics check (public_description is null or public_name is not null);

-- Who left a topic by an act of his own. Nobody else brings him back: not an import, not the API.
create table topic_departures (
    tenant_id uuid not null,
    audience_id uuid not null,
    contact_id uuid not null,
    send_id uuid not null,                      -- the mail whose link he followed
    left_at timestamptz not null default now(),
    primary key (tenant_id, contact_id, audience_id),
    foreign key (tenant_id, audience_id) references audiences (tenant_id, id),
    foreign key (tenant_id, contact_id) references contacts (tenant_id, id)
);
select wall_off('topic_departures');
create function keep_departed_out() returns trigger
language plpgsql
as $$
begin
    delete from audience_members m
    using joined j, topic_departures d
    where d.tenant_id = j.tenant_id and d.contact_id = j.contact_id and d.audience_id = j.audience_id
      and m.tenant_id = j.tenant_id and m.contact_id = j.contact_id and m.audience_id = j.audience_id;
    return null;
end $$;
create trigger audience_members_joined after insert on audience_members
    referencing new table as joined for each statement execute function keep_departed_out();

-- What a process says of itself beside being alive: sweeps whose last run failed, and which settings it was given (names only).
alter table heartbeats
    add column failing_sweeps text[] not null default '{}',
    add column settings text[] not null default '{}';

-- Numbers over all tenants, for the platform's health. The ingress sees one tenant at a time; these answer sums, no rows.
create function platform_totals() returns table (kind text, event text, count bigint)
language sql stable security definer set search_path from current
as $$
    select r.kind, r.event, sum(r.count)::bigint from rollups r
    where r.hour >= date_trunc('hour', now() - interval '1 hour', 'UTC')
    group by r.kind, r.event
$$;
-- Ages are in seconds; null where there is nothing. A paused campaign's batches, and those of a suspended tenant, rest on purpose.
create function platform_backlog() returns table (
    requests_accepted bigint, requests_oldest double precision, priority_open bigint, priority_oldest double precision,
    bulk_announced bigint, bulk_announcements_max integer, bulk_waiting bigint
)
language sql stable security definer set search_path from current
as $$
    select r.accepted, r.oldest, p.open, p.oldest, b.announced, b.announcements, w.waiting
    from (select count(*) as accepted, extract(epoch from now() - min(received_at))::double precision as oldest
          from (select received_at from requests where announce_after is not null and state = 'accepted' limit 10000) q) r
    cross join (select count(*) as open, extract(epoch from now() - min(q.created_at))::double precision as oldest
          from (select b.created_at from batches b join tenants t on t.id = b.tenant_id and t.status = 'active'
                where b.lane = 'priority' and b.state in ('waiting', 'announced') limit 10000) q) p
    cross join (select count(*) as announced, max(q.announcement) as announcements
          from (select b.announcement from batches b
                where b.lane = 'bulk' and b.state = 'announced'
                  and not exists (select from campaigns c where c.tenant_id = b.tenant_id and c.id = b.campaign_id and c.paused)
                  and exists (select from tenants t where t.id = b.tenant_id and t.status = 'active')
                limit 10000) q) b
    cross join (select count(*) as waiting
          from (select from batches where lane = 'bulk' and state = 'waiting' limit 10000) q) w
$$;
create function platform_domains() returns table (verified bigint, degraded bigint, failed bigint, stale bigint)
language sql stable security definer set search_path from current
as $$
    select count(*) filter (where status = 'verified'), count(*) filter (where status = 'degraded'),
           count(*) filter (where status = 'failed'),
           count(*) filter (where status in ('verified', 'degraded')
                              and coalesce(last_checked_at, verified_at, created_at) < now() - interval '48 hours')
    from domains where environment = 'production'
$$;
revoke execute on function platform_totals(), platform_backlog(), platform_domains() from public;
grant execute on function platform_totals(), platform_backlog(), platform_domains() to postrider_ingress, postrider_stages;
