-- Takes mails that wait to be read, and counts the start before they are read. If the process dies, they are due again after a minute.
-- Each tenant with mails gets an equal part of the group, as in take_inbound.sql. $1 how many at most, $2 true: only those that were
-- started before. Served by inbound_mails_of_tenant, which also finds the tenants, one after the other; with $2 true by
-- inbound_mails_again.
with recursive tenants as (
    (select m.tenant_id, m.due_at from inbound_mails m where m.due_at is not null order by m.tenant_id, m.due_at limit 1)
    union all
    select n.tenant_id, n.due_at
    from tenants t
    cross join lateral (
        select m.tenant_id, m.due_at from inbound_mails m
        where m.due_at is not null and m.tenant_id > t.tenant_id
        order by m.tenant_id, m.due_at limit 1
    ) n
), ready as materialized (
    -- What waits for a later time takes no part of the group.
    select t.tenant_id from tenants t where t.due_at <= statement_timestamp()
), due as materialized (
    select d.*
    from ready t
    cross join lateral (
        select m.tenant_id, m.id, m.due_at
        from inbound_mails m
        where m.tenant_id = t.tenant_id and m.due_at <= statement_timestamp() and (m.attempts > 0) = $2
        order by m.due_at, m.id
        limit (select greatest($1 / nullif(count(*), 0), 1) from ready)
        for update skip locked
    ) d
), placed as (
    select d.*, row_number() over (partition by d.tenant_id order by d.due_at, d.id) as place from due d
), taken as (
    select p.tenant_id, p.id from placed p order by p.place, p.due_at, p.id limit $1
)
update inbound_mails m
set attempts = m.attempts + 1, due_at = clock_timestamp() + interval '1 minute'
from taken t
where m.tenant_id = t.tenant_id and m.id = t.id
returning m.tenant_id, m.id, m.send_id, m.address_kind, m.null_sender, m.head, m.received_at, m.attempts
