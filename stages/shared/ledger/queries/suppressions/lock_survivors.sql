-- The addresses of the contacts that the contacts with these addresses were merged into. Locks them in id order, as every writer of
-- suppressions does. $1 tenants, $2 addresses, in parallel; answers the place of each, from 1. Most addresses have none. By the unique
-- index over addresses (`offset 0` keeps that order), then by primary key.
select w.place as "place!", s.address as "address!"
from unnest($1::uuid[], $2::text[]) with ordinality as w (tenant_id, address, place)
cross join lateral (
    select m.merged_into from contacts m
    where m.tenant_id = w.tenant_id and m.address = w.address and m.merged_into is not null
    offset 0
) m
join contacts s on s.tenant_id = w.tenant_id and s.id = m.merged_into
order by s.id
for no key update of s
