-- Leases that ran out before a fence: certainly not sent.
update sends s
set state = 'queued', claim_token = null, lease_until = null, next_attempt_at = null
from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as u (tenant_id, first, last)
where s.tenant_id = u.tenant_id and s.id between u.first and u.last and s.month = $4 and s.state = 'claimed' and s.lease_until < now()
returning s.id as "id!"
