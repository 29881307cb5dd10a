-- Fences claimed sends, if the claim token still matches; half of all changes are fences, and they set little. A row in another
-- state is left alone and not answered. Primary key; no indexed column changes, so updates stay HOT, and none that a trigger watches.
update sends s
set state = 'fenced', reason = null, lease_until = now() + make_interval(secs => $5), fenced_at = clock_timestamp(),
    next_attempt_at = null, decided_at = null
from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as u (tenant_id, id, token)
where s.tenant_id = u.tenant_id and s.id = u.id and s.month = $4 and s.state = 'claimed' and s.claim_token = u.token
returning s.id as "id!"
