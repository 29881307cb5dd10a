-- Locks the batches of a group, holds the gates of the tenants, and locks the contacts: so a fence and a stop are always in order, because a
-- suppression locks the contact, and a cancel, a pause or a suspension closes the gate. Later statements read both; their snapshots contain
-- everything that was committed before.
-- A contact that another transaction has locked, or whose gate is closed, is left out: an import locks thousands for seconds, and other
-- mail does not wait for it. $1 tenants and $2 contacts of the fences; $3 tenants and $4 ids of the batches, in their order, which is that of
-- every writer. The batches come first: the condition on them is checked before a contact is looked for. Primary keys.
with batches_locked as materialized (
    select 1
    from unnest($3::uuid[], $4::uuid[]) as u (tenant_id, id)
    cross join lateral (
        select 1 from batches b where b.tenant_id = u.tenant_id and b.id = u.id for no key update of b
    ) b
)
select c.id as "id!"
from unnest($1::uuid[], $2::uuid[]) as u (tenant_id, id)
cross join lateral (
    select c.id from contacts c where c.tenant_id = u.tenant_id and c.id = u.id for share of c skip locked
) c
where (select count(*) from batches_locked) >= 0
  and u.tenant_id = any (array(
    select t.id from (select distinct t.id from unnest($1::uuid[]) as t (id)) t where try_gate(t.id)
))
