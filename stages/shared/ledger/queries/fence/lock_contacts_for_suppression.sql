-- Locks contacts as every writer of suppressions does, in the order of contact ids, in which they are given. Primary key.
select 1 as "locked!"
from unnest($1::uuid[], $2::uuid[]) as u (tenant_id, id)
cross join lateral (
    select 1 from contacts c where c.tenant_id = u.tenant_id and c.id = u.id for no key update of c
) c
