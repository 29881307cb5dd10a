-- Holds the gates of these tenants, and locks these contacts: a fence and whatever stops it cannot pass each other, because a
-- suppression locks the contact, and a cancel, a pause or a suspension closes the gate. What is known of both is read in later
-- statements, whose snapshots then hold everything that came first.
-- Who is held by somebody else is left out, or whose gate is closed: an import holds thousands for seconds, and nobody else's mail waits
-- for that. Primary key.
select c.id as "id!"
from unnest($1::uuid[], $2::uuid[]) as u (tenant_id, id)
cross join lateral (
    select c.id from contacts c where c.tenant_id = u.tenant_id and c.id = u.id offset 0 for share of c skip locked
) c
where u.tenant_id = any (array(
    select t.id from (select distinct t.id from unnest($1::uuid[]) as t (id)) t where try_gate(t.id)
))
