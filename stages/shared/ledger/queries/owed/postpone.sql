-- The circuit breaker of a route is open, their templates take long, the stream of rendered mail is nearly full, or they wait on the bus for a
-- worker: these batches are announced again later. In the order in which all writers lock batches.
with due as (
    select b.tenant_id, b.id
    from unnest($1::uuid[], $2::uuid[]) as u (tenant_id, id)
    join batches b on b.tenant_id = u.tenant_id and b.id = u.id
    where b.state = 'announced' and not is_set_aside(b.announce_after, b.quiet_at)
    order by b.tenant_id, b.id
    for no key update of b
)
update batches b
set announce_after = now() + make_interval(secs => $3)
from due d
where b.tenant_id = d.tenant_id and b.id = d.id
