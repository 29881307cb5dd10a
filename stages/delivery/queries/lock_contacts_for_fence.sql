-- A fence and a suppression of the same person cannot pass each other: suppression writers lock the contact row too.
-- What is known of the contacts is read in a later statement, whose snapshot then holds every suppression that came first.
-- Who is held by somebody else is left out: an import holds thousands for seconds, and nobody else's mail waits for that. Primary key.
select c.id as "id!"
from unnest($1::uuid[], $2::uuid[]) as u (tenant_id, id)
cross join lateral (
    select c.id from contacts c where c.tenant_id = u.tenant_id and c.id = u.id offset 0 for share of c skip locked
) c
