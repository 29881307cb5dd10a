-- Tenants with a limit, one commit at a time: what they have used is read in a later statement and cannot change meanwhile.
-- Does not disturb the foreign keys of other writers. Primary key, in its order.
select 1 as "locked!"
from tenants t
where t.id = any($1::uuid[])
order by t.id
for no key update of t
