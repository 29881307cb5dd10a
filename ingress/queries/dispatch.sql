-- What became of a message: a row for each recipient. $1 tenant, $2 message, $3 month partition of its sends. Primary keys, and
-- `message_recipients (tenant_id, message_id, …)`.
select r.send_id, c.address as "email?", s.state as "state?: SendState", s.reason as "reason?", s.smtp_code as "smtp_code?",
       s.enhanced_code as "enhanced_code?", s.provider_message_id as "provider_message_id?", s.next_attempt_at as "next_attempt_at?",
       d.domain
from messages m
join senders x on x.tenant_id = m.tenant_id and x.id = m.sender_id
join domains d on d.tenant_id = x.tenant_id and d.id = x.domain_id
join message_recipients r on r.tenant_id = m.tenant_id and r.message_id = m.id
left join sends s on s.tenant_id = r.tenant_id and s.id = r.send_id and s.month = $3
left join contacts c on c.tenant_id = r.tenant_id and c.id = r.contact_id and c.status <> 'erased'
where m.tenant_id = $1 and m.id = $2
order by r.send_id
