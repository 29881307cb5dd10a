-- As every suppression writer does before it writes.
select 1 as "locked!"
from contacts c
join unnest($1::uuid[], $2::uuid[]) as u (tenant_id, id) on c.tenant_id = u.tenant_id and c.id = u.id
order by c.id
for no key update of c
