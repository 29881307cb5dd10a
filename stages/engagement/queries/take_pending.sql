-- Takes pending facts that are due, for a minute: the process may end. Each tenant with due facts gets an equal part of the group, its oldest in turn with those of the others, as
-- in take_inbound.sql. $1 how many at most. Served by pending_facts_of_tenant, which also finds the tenants, one after the other.
with recursive tenants as (
    (select p.tenant_id, p.due_at from pending_facts p where p.due_at is not null order by p.tenant_id, p.due_at limit 1)
    union all
    select n.tenant_id, n.due_at
    from tenants t
    cross join lateral (
        select p.tenant_id, p.due_at from pending_facts p
        where p.due_at is not null and p.tenant_id > t.tenant_id
        order by p.tenant_id, p.due_at limit 1
    ) n
), ready as materialized (
    -- Most facts wait for a later time.
    select t.tenant_id from tenants t where t.due_at <= now()
), placed as (
    select d.*, row_number() over (partition by d.tenant_id order by d.due_at, d.id) as place
    from ready r
    cross join lateral (
        select p.tenant_id, p.id, p.reason, p.due_at
        from pending_facts p
        where p.tenant_id = r.tenant_id and p.due_at <= now()
        order by p.due_at, p.id
        limit (select greatest($1::bigint / nullif(count(*), 0), 1) from ready)
    ) d
), taken as (
    select p.tenant_id, p.id, p.reason from placed p order by p.place, p.due_at, p.id limit $1
)
update pending_facts p set due_at = now() + interval '1 minute'
from taken t
where p.tenant_id = t.tenant_id and p.id = t.id and p.reason = t.reason and p.due_at <= now()
returning p.tenant_id, p.id, p.reason
