-- Due enrollments when more are due than one group takes: each tenant gets the same share of the group. The tenants are
-- found by jumping from one to the next in `enrollments_due_by_tenant`, a page each.
with recursive tenant (id) as (
    (select e.tenant_id from enrollments e where e.status = 'active' order by e.tenant_id limit 1)
    union all
    select (select e.tenant_id from enrollments e where e.status = 'active' and e.tenant_id > t.id order by e.tenant_id limit 1)
    from tenant t
    where t.id is not null
), waiting as materialized (
    select t.id
    from tenant t
    where exists (select from enrollments e where e.status = 'active' and e.tenant_id = t.id and e.next_action_at <= now())
), turn as materialized (
    select w.id, greatest($1 / (select count(*) from waiting), 1) as share from waiting w order by random() limit $1
)
select e.tenant_id as "tenant_id!", e.id as "id!", e.sequence_id as "sequence_id!", e.version as "version!", e.contact_id as "contact_id!",
       e.product as "product!", e.next_step as "next_step!", e.next_action_at as "due_at!", e.attempts as "attempts!",
       e.opted_out_by_step as "opted_out_by_step!"
from turn t
cross join lateral (
    select d.* from enrollments d
    where d.tenant_id = t.id and d.status = 'active' and d.next_action_at <= now()
    order by d.next_action_at
    limit t.share
    for no key update of d skip locked
) e
