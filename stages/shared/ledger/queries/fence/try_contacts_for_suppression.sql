-- Locks contacts as every writer of suppressions does, but leaves out those that another transaction has locked. Primary key.
select c.id as "id!"
from unnest($1::uuid[], $2::uuid[]) as u (tenant_id, id)
cross join lateral (
    select c.id from contacts c where c.tenant_id = u.tenant_id and c.id = u.id for no key update of c skip locked
) c
