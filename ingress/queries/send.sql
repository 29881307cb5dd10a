-- One send with its batch and the recipient's address. $1 tenant, $2 send, $3 month partition, $4 batch.
-- Served by the primary keys.
select s.id, s.campaign_id, s.contact_id, c.address as "email?", s.state as "state: _", s.reason, s.attempts, s.next_attempt_at,
       s.decided_at, s.smtp_code, s.enhanced_code, s.response, s.delivered_at, s.bounced_at, s.complained_at, s.opened_at,
       s.clicked_at, s.unsubscribed_at, b.kind as "message_kind: _", b.classification as "classification: _",
       b.lane as "lane: _", b.content_id, b.sender_id, b.created_at
from sends s
join batches b on b.tenant_id = s.tenant_id and b.id = $4
left join contacts c on c.tenant_id = s.tenant_id and c.id = s.contact_id and c.status <> 'erased'
where s.tenant_id = $1 and s.id = $2 and s.month = $3
