-- The tenant of a send. Used for a return path whose tag was checked, before the tenant is known. $1 its batch, $2 the
-- send, $3 its month. Served by batches_by_id, then the primary key of sends.
select b.tenant_id
from batches b
cross join lateral (
    select 1 from sends s where s.tenant_id = b.tenant_id and s.id = $2 and s.month = $3 offset 0
) s
where b.id = $1
