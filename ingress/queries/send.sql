-- One send with its batch, the recipient's address and the template version it pins. $1 tenant, $2 send, $3 month partition, $4 batch.
-- Served by the primary keys.
select s.id as send_id, b.kind as "message_kind: _", s.campaign_id,
       case when b.kind in ('one_off', 'test') then b.id end as "message_id?", s.contact_id as "contact_id?", c.address as "email?",
       s.state as "state: _", case when s.state = 'skipped' then s.reason end as "skip_reason?",
       case when s.state <> 'skipped' then s.reason end as "failure_reason?", s.attempts as attempt_count, s.smtp_code, s.enhanced_code,
       s.response, s.provider, s.provider_message_id,
       case when s.state = 'deferred' then s.next_attempt_at end as "next_attempt_at?", s.decided_at,
       jsonb_build_object('delivered_at', s.delivered_at, 'bounced_at', s.bounced_at, 'complained_at', s.complained_at,
                          'opened_at', s.opened_at, 'human_opened_at', s.human_opened_at, 'clicked_at', s.clicked_at,
                          'human_clicked_at', s.human_clicked_at, 'unsubscribed_at', s.unsubscribed_at,
                          'replied_at', s.replied_at) as "facts!: Json<SendFacts>",
       b.classification as "classification: _", b.lane as "lane: _", b.content_id as "content_id?", b.sender_id as "sender_id?",
       b.variant, b.created_at, t.template_id as "template_id?",
       t.version as "template_version?", q.sequence_id as "sequence_id?", q.enrollment_id as "enrollment_id?", q.step_id as "step_id?",
       r.options as "options?: Json<MailOptions>"
from sends s
join batches b on b.tenant_id = s.tenant_id and b.id = $4
left join requests r on r.tenant_id = s.tenant_id and r.id = s.request_id
left join sequence_sends q on q.tenant_id = s.tenant_id and q.send_id = s.id
left join contacts c on c.tenant_id = s.tenant_id and c.id = s.contact_id and c.status <> 'erased'
cross join lateral template_of_mail(b.tenant_id, b.content_id, b.campaign_id, b.variant) t
where s.tenant_id = $1 and s.id = $2 and s.month = $3
