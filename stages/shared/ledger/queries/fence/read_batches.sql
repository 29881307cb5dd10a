-- The facts that may have stopped these batches since they were claimed, their topics, and their tenants' own send limits. From
-- key to key (`offset 0`), whatever the tables contain.
select b.id as "id!", b.tenant_id as "tenant_id!", c.status as "campaign_status?: CampaignStatus", coalesce(c.paused, false) as "paused!",
       case when c.closes_at <= clock_timestamp() then c.on_miss end as "missed?: OnMiss",
       t.status as "tenant_status!", t.paused_at is not null as "tenant_paused!", d.status as "domain_status!: DomainStatus", s.status as "sender_status!",
       a.id as "topic_id?", l.monthly as "monthly?", l.daily as "daily?", (now() at time zone 'utc')::date as "today!"
from unnest($1::uuid[], $2::uuid[]) as u (tenant_id, id)
cross join lateral (
    select b.tenant_id, b.id, b.sender_id, b.campaign_id from batches b where b.tenant_id = u.tenant_id and b.id = u.id offset 0
) b
cross join lateral (select t.status, t.paused_at from tenants t where t.id = b.tenant_id offset 0) t
cross join lateral (
    select s.status, s.domain_id from senders s where s.tenant_id = b.tenant_id and s.id = b.sender_id offset 0
) s
cross join lateral (select d.status from domains d where d.tenant_id = b.tenant_id and d.id = s.domain_id offset 0) d
left join lateral (
    select c.status, c.paused, c.closes_at, c.on_miss, case c.audience_mode when 'list' then c.list_id end as list_id
    from campaigns c where c.tenant_id = b.tenant_id and c.id = b.campaign_id offset 0
) c on true
left join lateral (
    select a.id from audiences a where a.tenant_id = b.tenant_id and a.id = c.list_id and a.public_name is not null offset 0
) a on true
left join lateral (select l.monthly, l.daily from send_limits l where l.tenant_id = b.tenant_id offset 0) l on true
