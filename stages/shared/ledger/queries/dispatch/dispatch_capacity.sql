-- How many sends are in flight of all tenants without a provider connection of their own, and whether an isolated tenant, one with such a
-- connection, has capacity left. $1: most sends in flight of each isolated tenant. Served by
-- `batches_open`.
with isolated as materialized (
    select distinct tenant_id from own_routes
), in_flight as materialized (
    select tenant_id, weight from bulk_in_flight
)
select (select coalesce(sum(f.weight), 0)::bigint
        from in_flight f
        where f.tenant_id not in (select a.tenant_id from isolated a)) as "in_flight!",
       exists (
           select from isolated a
           left join in_flight f on f.tenant_id = a.tenant_id
           where coalesce(f.weight, 0) < $1
             and exists (select from batches b where b.lane = 'bulk' and b.state = 'waiting' and b.tenant_id = a.tenant_id)) as "isolated!"
