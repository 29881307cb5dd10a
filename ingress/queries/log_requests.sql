-- Writes calls into the request log. A tenant that is only named is found by the primary key of `tenant_links`; without one the call is in
-- nobody's log. A group whose commit was in doubt is written again: its rows are there already.
-- Asynchronous commit: the last condition is always true and saves the round trips of begin and commit. A subquery, so that it runs once.
-- $1 tenants, or $2 the products' own names of them, $3 ids, $4 products, $5 environments, $6 keys, $7 ways in, $8 operations, $9 statuses,
-- $10 codes of refusals, $11 fields, $12 replays, $13 request ids, $14 milliseconds, $15 times.
insert into request_log (tenant_id, id, product, environment, key_id, via, operation, status, error, field, replayed, request_id,
                         duration_ms, at)
select n.tenant_id, n.id, n.product, n.environment, n.key_id, n.via, n.operation, n.status, n.error, n.field, n.replayed, n.request_id,
       n.duration_ms, n.at
from (
    select coalesce(c.tenant_id, (
               select l.tenant_id from tenant_links l
               where l.product = c.product and l.environment = c.environment and l.product_tenant_id = c.product_tenant_id)) as tenant_id,
           c.id, c.product, c.environment, c.key_id, c.via, c.operation, c.status, c.error, c.field, c.replayed, c.request_id,
           c.duration_ms, c.at
    from unnest($1::uuid[], $2::text[], $3::uuid[], $4::text[], $5::text[], $6::uuid[], $7::text[], $8::text[], $9::smallint[],
                $10::text[], $11::text[], $12::boolean[], $13::text[], $14::integer[], $15::timestamptz[])
        as c (tenant_id, product_tenant_id, id, product, environment, key_id, via, operation, status, error, field, replayed, request_id,
              duration_ms, at)
    offset 0
) n
where n.tenant_id is not null and (select set_config('synchronous_commit', 'off', true)) = 'off'
on conflict do nothing
