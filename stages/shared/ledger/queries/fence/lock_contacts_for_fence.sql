-- Holds the gates of these tenants, and locks these contacts: so a fence and a stop are always in order, because a suppression locks the
-- contact, and a cancel, a pause or a suspension closes the gate. Later statements read both; their snapshots contain everything that was
-- committed before.
-- A contact that another transaction has locked, or whose gate is closed, is left out: an import locks thousands for seconds, and other
-- mail does not wait for it. Primary key.
select c.id as "id!"
from unnest($1::uuid[], $2::uuid[]) as u (tenant_id, id)
cross join lateral (
    select c.id from contacts c where c.tenant_id = u.tenant_id and c.id = u.id for share of c skip locked
) c
where u.tenant_id = any (array(
    select t.id from (select distinct t.id from unnest($1::uuid[]) as t (id)) t where try_gate(t.id)
))
