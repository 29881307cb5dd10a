-- The circuit breaker of a route is open, or they wait on the bus for a worker: these batches are announced again later.
update batches b
set announce_after = now() + make_interval(secs => $3)
from unnest($1::uuid[], $2::uuid[]) as u (tenant_id, id)
where b.tenant_id = u.tenant_id and b.id = u.id and b.state = 'announced'
  and not is_set_aside(b.announce_after)
