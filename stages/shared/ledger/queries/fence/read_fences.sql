-- The facts that may have stopped the batches of these fences or make them wait since their sends were read, their topics, their tenants' own
-- send limits, and the eligibility of their contacts; read after these were locked. $1 tenants, $2 batches, $3 contacts. A contact that was
-- erased has none: its batch is answered all the same. From key to key: primary keys, on a connection for that. The request of a mail that asks
-- for consent has the id of its batch.
select b.id as "id!", b.kind as "kind!: MessageKind", b.classification as "classification!: Classification", b.tenant_id as "tenant_id!", c.status as "campaign_status?: CampaignStatus", coalesce(c.paused, false) as "paused!",
       case when c.closes_at <= clock_timestamp() then c.on_miss end as "missed?: OnMiss",
       t.status = 'active' as "tenant_active!", t.paused_at is not null as "tenant_paused!", d.status as "domain_status!: DomainStatus", s.status = 'active' as "sender_active!",
       t.frequency_cap_messages is not null as "has_cap!", c.urgency as "urgency?", t.quiet_from as "quiet_from?", t.quiet_to as "quiet_to?", t.quiet_for as "quiet_for?", t.timezone as "timezone!",
       a.id as "topic_id?", coalesce(r.options ? 'asks_to_confirm', false) as "asks_to_confirm!", l.monthly as "monthly?", l.daily as "daily?", now() as "read_at!",
       e.contact_id as "contact_id?", coalesce(e.contact_active, false) as "contact_active!", coalesce(e.marketing_status, '') as "marketing_status!",
       coalesce(e.hard_bounced, false) as "hard_bounced!", coalesce(e.complained, false) as "complained!",
       coalesce(e.unsubscribed, false) as "unsubscribed!", coalesce(e.invalid, false) as "invalid!",
       coalesce(e.suppressed_all, false) as "suppressed_all!", coalesce(e.suppressed_marketing, false) as "suppressed_marketing!",
       e.cap_left as "cap_left?", e.timezone as "contact_timezone?"
from (
    select u.tenant_id, u.batch_id, array_agg(u.contact_id) as contacts
    from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as u (tenant_id, batch_id, contact_id)
    group by u.tenant_id, u.batch_id
) u
join batches b on b.tenant_id = u.tenant_id and b.id = u.batch_id
join tenants t on t.id = b.tenant_id
join senders s on s.tenant_id = b.tenant_id and s.id = b.sender_id
join domains d on d.tenant_id = b.tenant_id and d.id = s.domain_id
left join campaigns c on c.tenant_id = b.tenant_id and c.id = b.campaign_id
left join audiences a on a.tenant_id = b.tenant_id and c.audience_mode = 'list' and a.id = c.list_id and (a.public_name is not null or a.was_topic)
left join requests r on b.kind = 'transactional' and r.tenant_id = b.tenant_id and r.id = b.id
left join send_limits l on l.tenant_id = b.tenant_id
left join lateral recipient_eligibility(u.tenant_id, u.contacts) e on true
