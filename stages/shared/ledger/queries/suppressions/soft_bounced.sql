-- The contacts whose mailbox bounced softly $3 times within $4 seconds, with no mail that arrived after the first of these. $1 tenants,
-- $2 contacts; none of them is locked yet: reading takes long where there are many campaigns. Most contacts have fewer bounces, so these
-- are counted first. Arrived mail is searched among the campaigns that were not over before that time, by campaigns_by_end and
-- sends_once_per_campaign, and among other mail, by sends_by_contact.
with bounced as materialized (
    select w.tenant_id, w.id
    from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
    where (select count(*) from soft_bounces b
           where b.tenant_id = w.tenant_id and b.contact_id = w.id and b.occurred_at > now() - make_interval(secs => $4)) >= $3
      and exists (select from contacts c where c.tenant_id = w.tenant_id and c.id = w.id and c.status <> 'erased')
)
select w.tenant_id as "tenant_id!", w.id as "contact_id!", b.last_send as "send_id!", b.times as "times!"
from bounced w
cross join lateral (
    select max(greatest(s.delivered_at, s.opened_at, s.clicked_at, s.replied_at,
                        case when delivers_at_once(s.provider) and s.state = 'sent' then s.decided_at end)) as at
    from (
        select s.* from campaigns k
        cross join lateral (
            select s.* from sends s
            where s.tenant_id = k.tenant_id and s.campaign_id = k.id and s.contact_id = w.id and s.month = k.month
            offset 0
        ) s
        where k.tenant_id = w.tenant_id and k.launched_at is not null
          and coalesce(k.completed_at, 'infinity'::timestamptz) > now() - make_interval(secs => $4) - interval '3 days'
        union all
        select s.* from sends s
        where s.tenant_id = w.tenant_id and s.contact_id = w.id and s.campaign_id is null
          and s.month >= date_trunc('month', (now() - make_interval(secs => $4)) at time zone 'utc' - interval '3 days')::date
    ) s
    where s.bounced_at is null
) arrived
cross join lateral (
    select count(*) as times, (array_agg(b.send_id order by b.occurred_at desc))[1] as last_send
    from soft_bounces b
    where b.tenant_id = w.tenant_id and b.contact_id = w.id and b.occurred_at > now() - make_interval(secs => $4)
      and (arrived.at is null or b.occurred_at > arrived.at)
) b
where b.times >= $3
