-- Facts about sends, with the send, its recipient and its place in a sequence. $1 tenants, $2 sends, $3 facts, $4 months. Each is
-- looked up by primary key, in the order keys are known; the mail of a campaign is of no request and no sequence. An acceptance has the id
-- of its send and no event (`acceptances`).
select w.tenant_id as "tenant_id!", w.send_id as "send_id!", w.id as "id!", coalesce(e.type, 'sent') as "fact_type!", coalesce(e.occurred_at, s.decided_at) as "occurred_at!",
       coalesce(e.recorded_at, s.decided_at) as "recorded_at!",
       coalesce(e.detail, acceptance_detail(s.attempts, s.smtp_code, s.enhanced_code, s.response)) as "detail!", s.campaign_id as "campaign_id?", s.contact_id as "contact_id!",
       s.provider as "provider?", s.provider_message_id as "provider_message_id?", s.opened_at as "opened_at?",
       s.clicked_at as "clicked_at?", c.address as "address?", q.sequence_id as "sequence_id?",
       q.enrollment_id as "enrollment_id?", q.step_id as "step_id?", r.options as "options?: Json<MailOptions>"
from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::date[]) as w (tenant_id, send_id, id, month)
join sends s on s.tenant_id = w.tenant_id and s.id = w.send_id and s.month = w.month
left join events e on e.tenant_id = w.tenant_id and e.send_id = w.send_id and e.id = w.id and e.month = w.month
left join contacts c on c.tenant_id = w.tenant_id and c.id = s.contact_id and c.status <> 'erased'
left join requests r on r.tenant_id = w.tenant_id and r.id = s.request_id
left join sequence_sends q on q.tenant_id = w.tenant_id and q.send_id = case when s.campaign_id is null then w.send_id end
where e.id is not null or w.id = w.send_id and s.state = 'sent'
