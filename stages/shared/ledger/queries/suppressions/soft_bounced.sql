-- The contacts whose mailbox bounced softly $3 times within $4 seconds, with no mail that arrived after the first of these: they are to be
-- suppressed for $5 seconds, for marketing mail. The suppression expires; neither a delivery nor a second check shortens it. $1 tenants,
-- $2 contacts, which are locked. Arrived mail is searched among the campaigns of that time, by sends_once_per_campaign, and among other mail, by
-- sends_by_contact. A suppression that another source set and that is in force is left alone.
select w.tenant_id as "tenant_id!", c.address, b.last_send as "send_id!", b.times as "times!",
       now() + make_interval(secs => $5) as "until!"
from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
cross join lateral (
    select c.address from contacts c where c.tenant_id = w.tenant_id and c.id = w.id and c.status <> 'erased' offset 0
) c
cross join lateral (
    select max(greatest(s.delivered_at, s.opened_at, s.clicked_at, s.replied_at, case when s.state = 'sent' then s.decided_at end)) as at
    from (
        select s.* from campaigns k
        cross join lateral (
            select s.* from sends s
            where s.tenant_id = k.tenant_id and s.campaign_id = k.id and s.contact_id = w.id and s.month = k.month
            offset 0
        ) s
        where k.tenant_id = w.tenant_id and k.launched_at > now() - make_interval(secs => $4) - interval '3 days'
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
  and not exists (
      select from suppressions s
      where s.tenant_id = w.tenant_id and s.address = c.address and s.reason = 'invalid' and s.source <> 'engagement'
        and (s.expires_at is null or s.expires_at > now()))
