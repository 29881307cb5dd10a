-- After a sweep, a batch's lease is the earliest of its fenced sends: the next time to check the batch.
update batches b
set lease_until = (
    select min(s.lease_until) from sends s
    where s.tenant_id = b.tenant_id and s.month = b.month and s.id between b.id and last_id_of(b.id) and s.state = 'fenced')
from unnest($1::uuid[], $2::uuid[]) as u (tenant_id, id)
where b.tenant_id = u.tenant_id and b.id = u.id
