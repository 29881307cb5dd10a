-- Claims whose leases expired before a fence, and those of sessions that are gone ($5 to $6): certainly not sent.
update sends s
set state = 'queued', claim_token = null, lease_until = null, next_attempt_at = null
from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as u (tenant_id, first, last)
where s.tenant_id = u.tenant_id and s.id between u.first and u.last and s.month = $4 and s.state = 'claimed'
  and (s.lease_until < now()
       or exists (select from unnest($5::uuid[], $6::uuid[]) as g (first, last) where s.claim_token between g.first and g.last))
returning s.id as "id!"
