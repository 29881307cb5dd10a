-- Locks tenants with a limit or a frequency cap, one commit at a time: a later statement reads what they have used, which cannot change
-- meanwhile. Does not disturb the foreign keys of other writers. Primary key, in its order.
select 1 as "locked!"
from tenants t
where t.id = any($1::uuid[])
order by t.id
for no key update of t
