-- Locks the batches whose sends are about to change, in the order every writer takes them. Primary key.
select 1 as "locked!"
from batches b
join unnest($1::uuid[], $2::uuid[]) as u (tenant_id, id) on b.tenant_id = u.tenant_id and b.id = u.id
order by b.tenant_id, b.id
for no key update of b
