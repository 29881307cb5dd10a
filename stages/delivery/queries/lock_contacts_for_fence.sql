-- A fence and a suppression of the same person cannot pass each other: suppression writers lock the contact row too.
-- What is known of the contacts is read in a later statement, whose snapshot then holds every suppression that came first.
select 1 as "locked!"
from contacts c
join unnest($1::uuid[], $2::uuid[]) as u (tenant_id, id) on c.tenant_id = u.tenant_id and c.id = u.id
order by c.id
for share of c
