-- The facts of these batches that decide whether and how their sends are sent, read without a lock: the fence reads them again. From key to
-- key: primary keys.
select b.tenant_id as "tenant_id!", b.id as "id!", b.month as "month!", b.kind as "kind!: MessageKind", b.lane as "lane!: Lane",
       b.classification as "classification!: Classification", b.campaign_id, b.created_at as "created_at!", b.due_at,
       c.status as "campaign_status?: CampaignStatus", coalesce(c.paused, false) as "paused!",
       case when c.closes_at <= now() then c.on_miss end as "missed?: OnMiss",
       t.status = 'active' as "tenant_active!", t.paused_at is not null as "tenant_paused!", t.environment as "environment!: Environment",
       t.quiet_from as "quiet_from?", t.quiet_to as "quiet_to?",
       t.quiet_for as "quiet_for?", t.timezone as "timezone!", s.status = 'active' as "sender_active!", d.status as "domain_status!: DomainStatus", w.domain_id as "warming?",
       exists (select from fallback_connections p where p.tenant_id = b.tenant_id) as "has_fallback!"
from unnest($1::uuid[], $2::uuid[]) as u (tenant_id, id)
join batches b on b.tenant_id = u.tenant_id and b.id = u.id
join tenants t on t.id = b.tenant_id
join senders s on s.tenant_id = b.tenant_id and s.id = b.sender_id
join domains d on d.tenant_id = s.tenant_id and d.id = s.domain_id
left join domain_warmups w on w.tenant_id = d.tenant_id and w.domain_id = d.id and w.is_on
left join campaigns c on c.tenant_id = b.tenant_id and c.id = b.campaign_id
