-- How much is owed and since when, over all tenants: for metrics and for the platform's health. Ages are in seconds; what is counted
-- is counted to 10,000. Each answers from an index, however large the tables are.

-- Batches with a send in doubt. The counter changes when that happens and at no other time, so this costs no HOT update.
create index batches_unknown on batches (lane, id) where unknown > 0;

-- Batches that are not done, by lane and state. `oldest` is of those that are owed: what a paused campaign, a paused or a suspended
-- tenant has open rests on purpose. Served by `batches_open`.
create function platform_batches() returns table (
    lane text, state text, batches bigint, announcements integer, oldest double precision
)
language sql stable security definer set search_path from current set enable_seqscan = off
as $$
    select l.lane, s.state, coalesce(sum(g.batches), 0)::bigint, coalesce(max(g.announcements) filter (where g.owed), 0),
           extract(epoch from now() - min(g.oldest) filter (where g.owed))::double precision
    from unnest(array['priority', 'bulk']) as l (lane)
    cross join unnest(array['waiting', 'announced', 'resting']) as s (state)
    left join lateral (
        select t.batches, t.announcements, t.oldest,
               exists (select from tenants n where n.id = t.tenant_id and n.status = 'active' and n.paused_at is null)
               and not exists (
                   select from campaigns c where c.tenant_id = t.tenant_id and c.id = t.campaign_id and c.paused) as owed
        from (
            select q.tenant_id, q.campaign_id, count(*) as batches, max(q.announcement) as announcements,
                   min(q.created_at) as oldest
            from (
                select b.tenant_id, b.campaign_id, b.announcement, b.created_at from batches b
                where b.lane = l.lane and b.state = s.state and b.state <> 'done'
                limit 10000
            ) q
            group by q.tenant_id, q.campaign_id
        ) t
    ) g on true
    group by l.lane, s.state
$$;

-- Requests accepted and not handled, by kind. Served by `requests_due`.
create function platform_requests() returns table (kind text, requests bigint, oldest double precision)
language sql stable security definer set search_path from current set enable_seqscan = off
as $$
    select q.kind, count(*), extract(epoch from now() - min(q.received_at))::double precision
    from (
        select r.kind, r.received_at from requests r
        where r.announce_after is not null and r.state = 'accepted'
        limit 10000
    ) q
    group by q.kind
$$;

-- Sends of the last seven days whose outcome nobody knows, by lane; the age is that of the doubt, looked for in the oldest twenty
-- batches. Served by `batches_unknown` and the primary key of `sends`.
create function platform_unknown() returns table (lane text, sends bigint, oldest double precision)
language sql stable security definer set search_path from current set enable_seqscan = off
as $$
    with since as materialized (
        select (lpad(to_hex((extract(epoch from now() - interval '7 days') * 1000)::bigint), 12, '0')
                || '00000000000000000000')::uuid as id
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
              and s.id between b.id and (left(b.id::text, 33)
                  || to_hex(('x' || substr(b.id::text, 34, 1))::bit(4)::integer | 1) || 'ff')::uuid
            offset 0
        ) d
    ) o
$$;

-- The oldest work each stage but delivery owes, null where it owes none. What delivery owes is every batch that was made and is open
-- (`platform_batches`): whether compliance, rendering or delivery has it, the streams tell.
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
        select 'webhooks', (select n.noted_at from outbox n order by n.id limit 1)
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

-- Facts that wait for their send. Served by `parked_facts_due`.
create function platform_parked() returns bigint
language sql stable security definer set search_path from current set enable_seqscan = off
as $$
    select count(*) from (select from parked_facts where due_at is not null limit 10000) q
$$;

revoke execute on function platform_batches(), platform_requests(), platform_unknown(), platform_owed(), platform_parked() from public;
grant execute on function platform_batches(), platform_requests(), platform_unknown(), platform_owed(), platform_parked()
    to postrider_ingress, postrider_stages;
