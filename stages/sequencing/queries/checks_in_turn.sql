-- Notes of contacts whose enrollments may have to end, at most $1: each tenant gets the same share, its oldest first, locked. The tenants are
-- found by jumping from one to the next in the key of `enrollment_checks`, a page each.
with recursive tenant (id) as (
    (select k.tenant_id from enrollment_checks k order by k.tenant_id limit 1)
    union all
    select (select k.tenant_id from enrollment_checks k where k.tenant_id > t.id order by k.tenant_id limit 1)
    from tenant t
    where t.id is not null
), turn as materialized (
    select t.id, greatest($1 / (select count(id) from tenant), 1) as share
    from tenant t
    where t.id is not null
    order by random()
    limit $1
)
select k.tenant_id as "tenant_id!", k.id as "id!", k.contact_id as "contact_id!", k.replied_to, k.reached_at as "reached_at!",
       k.reached_id as "reached_id!"
from turn t
cross join lateral (
    select n.* from enrollment_checks n
    where n.tenant_id = t.id
    order by n.id
    limit t.share
    for update of n skip locked
) k
