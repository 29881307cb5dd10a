-- Undecided occurrences of triggers, at most $1: each tenant gets the same share, its oldest first, locked. The tenants are found by jumping
-- from one to the next in `trigger_occurrences_due`, a page each.
with recursive tenant (id) as (
    (select o.tenant_id from trigger_occurrences o where o.decided_at is null order by o.tenant_id limit 1)
    union all
    select (select o.tenant_id from trigger_occurrences o where o.decided_at is null and o.tenant_id > t.id order by o.tenant_id limit 1)
    from tenant t
    where t.id is not null
), turn as materialized (
    select t.id, greatest($1 / (select count(id) from tenant), 1) as share
    from tenant t
    where t.id is not null
    order by random()
    limit $1
)
select o.tenant_id as "tenant_id!", o.sequence_id as "sequence_id!", o.contact_id as "contact_id!", o.occurrence as "occurrence!",
       o.event_id, o.noted_at as "noted_at!"
from turn t
cross join lateral (
    select d.* from trigger_occurrences d
    where d.tenant_id = t.id and d.decided_at is null
    order by d.noted_at
    limit t.share
    for no key update of d skip locked
) o
