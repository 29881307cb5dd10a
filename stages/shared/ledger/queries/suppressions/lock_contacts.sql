-- Locks contacts in id order, like every writer of suppressions. $1 tenants, $2 contacts.
select 1 as one
from contacts c
join unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id) on c.tenant_id = w.tenant_id and c.id = w.id
order by c.id for no key update of c
