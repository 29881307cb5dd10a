-- Takes due raw events and counts the start before they are read; rows another process has locked are skipped. If the process dies, they
-- are due again after a minute. Each tenant with events gets an equal part of the group, its oldest in turn with those of the others, so
-- that no tenant waits for the backlog of another. $1 how many at most, $2 bytes in all at most (the first may have more), $3 true: only
-- those that were started before. Served by inbound_events_of_tenant, which also finds the tenants, one after the other; with $3 true by
-- inbound_events_again: in a backlog, hardly an event was started before.
with recursive tenants as (
    (select e.tenant_id, e.due_at from inbound_events e where e.due_at is not null order by e.tenant_id, e.due_at limit 1)
    union all
    select n.tenant_id, n.due_at
    from tenants t
    cross join lateral (
        select e.tenant_id, e.due_at from inbound_events e
        where e.due_at is not null and e.tenant_id > t.tenant_id
        order by e.tenant_id, e.due_at limit 1
    ) n
), ready as materialized (
    -- What waits for a later time takes no part of the group.
    select t.tenant_id from tenants t where t.due_at <= now()
), due as materialized (
    select d.*
    from ready t
    cross join lateral (
        select e.tenant_id, e.id, e.due_at, octet_length(e.raw) as size
        from inbound_events e
        where e.tenant_id = t.tenant_id and e.due_at <= now() and (e.attempts > 0) = $3
        order by e.due_at, e.id
        limit (select greatest($1 / nullif(count(*), 0), 1) from ready)
        for update skip locked
    ) d
), placed as (
    select d.*, row_number() over (partition by d.tenant_id order by d.due_at, d.id) as place from due d
), summed as (
    select p.tenant_id, p.id, sum(p.size) over turns - p.size as before, row_number() over turns as number
    from placed p window turns as (order by p.place, p.due_at, p.id)
)
update inbound_events e
set attempts = e.attempts + 1, due_at = clock_timestamp() + interval '1 minute'
from summed s
where e.tenant_id = s.tenant_id and e.id = s.id and s.before < $2 and s.number <= $1
returning e.tenant_id, e.id, e.connection_id, e.provider, e.raw, e.received_at, e.attempts
