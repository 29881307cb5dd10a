-- Locks the batches whose sends are about to change, in the given order, which is that of every writer.
-- Primary key.
select 1 as "locked!"
from unnest($1::uuid[], $2::uuid[]) as u (tenant_id, id)
cross join lateral (
    select 1 from batches b where b.tenant_id = u.tenant_id and b.id = u.id for no key update of b
) b
