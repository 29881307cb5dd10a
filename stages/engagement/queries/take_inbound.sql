-- Raw events that are due, oldest first, locked; what another process holds is passed over. $1 how many at most, $2 bytes in all at
-- most (the first may have more), $3 one of them only, or null. Served by inbound_events_due.
with due as materialized (
    select e.tenant_id, e.id, e.due_at, octet_length(e.raw) as size
    from inbound_events e
    where e.due_at <= now() and ($3::uuid is null or e.id = $3)
    order by e.due_at, e.id
    limit $1
    for update skip locked
), summed as (
    select d.tenant_id, d.id, d.due_at, sum(d.size) over (order by d.due_at, d.id) - d.size as before from due d
)
select e.tenant_id, e.id, e.connection_id, e.provider, e.raw, e.received_at
from summed s
join inbound_events e on e.tenant_id = s.tenant_id and e.id = s.id
where s.before < $2
order by s.due_at, s.id
