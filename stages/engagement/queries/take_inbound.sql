-- Takes due raw events, oldest first, and counts the start before they are read; rows another process has locked are skipped. If the
-- process dies, they are due again after a minute. $1 how many at most, $2 bytes in all at most (the first may have more), $3 true: only
-- those that were started before. Served by inbound_events_due.
with due as materialized (
    select e.tenant_id, e.id, e.due_at, octet_length(e.raw) as size
    from inbound_events e
    where e.due_at <= now() and (e.attempts > 0) = $3
    order by e.due_at, e.id
    limit $1
    for update skip locked
), summed as (
    select d.tenant_id, d.id, sum(d.size) over (order by d.due_at, d.id) - d.size as before from due d
)
update inbound_events e
set attempts = e.attempts + 1, due_at = clock_timestamp() + interval '1 minute'
from summed s
where e.tenant_id = s.tenant_id and e.id = s.id and s.before < $2
returning e.tenant_id, e.id, e.connection_id, e.provider, e.raw, e.received_at, e.attempts
