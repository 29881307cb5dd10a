-- Locks the warm-ups of domains, one commit at a time, in the given order. Primary key.
select 1 as "locked!"
from unnest($1::uuid[], $2::uuid[]) as u (tenant_id, id)
cross join lateral (
    select 1 from domain_warmups w where w.tenant_id = u.tenant_id and w.domain_id = u.id for no key update of w
) w
