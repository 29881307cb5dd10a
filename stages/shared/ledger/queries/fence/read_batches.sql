-- The facts that may have stopped these batches or make them wait since their sends were read, their topics, and their tenants' own send limits. From
-- key to key: primary keys, on a connection for that. The request of a mail that asks for consent has the id of its batch.
select b.id as "id!", b.kind as "kind!: MessageKind", b.classification as "classification!: Classification", b.tenant_id as "tenant_id!", c.status as "campaign_status?: CampaignStatus", coalesce(c.paused, false) as "paused!",
       case when c.closes_at <= clock_timestamp() then c.on_miss end as "missed?: OnMiss",
       t.status = 'active' as "tenant_active!", t.paused_at is not null as "tenant_paused!", d.status as "domain_status!: DomainStatus", s.status = 'active' as "sender_active!",
       t.frequency_cap_messages is not null as "has_cap!", c.urgency as "urgency?", t.quiet_from as "quiet_from?", t.quiet_to as "quiet_to?", t.quiet_for as "quiet_for?", t.timezone as "timezone!",
       a.id as "topic_id?", coalesce(r.options ? 'asks_to_confirm', false) as "asks_to_confirm!", l.monthly as "monthly?", l.daily as "daily?", (now() at time zone 'utc')::date as "today!"
from unnest($1::uuid[], $2::uuid[]) as u (tenant_id, id)
join batches b on b.tenant_id = u.tenant_id and b.id = u.id
join tenants t on t.id = b.tenant_id
join senders s on s.tenant_id = b.tenant_id and s.id = b.sender_id
join domains d on d.tenant_id = b.tenant_id and d.id = s.domain_id
left join campaigns c on c.tenant_id = b.tenant_id and c.id = b.campaign_id
left join audiences a on a.tenant_id = b.tenant_id and c.audience_mode = 'list' and a.id = c.list_id and a.public_name is not null
left join requests r on b.kind = 'transactional' and r.tenant_id = b.tenant_id and r.id = b.id
left join send_limits l on l.tenant_id = b.tenant_id
