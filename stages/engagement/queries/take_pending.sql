-- Pending facts that are due. Each tenant with due facts gets an equal part of the group, its oldest in turn with those of the others, as
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
)
select p.tenant_id as "tenant_id!", p.id as "id!", p.reason as "reason!"
from placed p order by p.place, p.due_at, p.id limit $1
