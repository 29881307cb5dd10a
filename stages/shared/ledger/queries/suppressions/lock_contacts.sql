-- Locks contacts, and the contacts that they were merged into, in id order: the order of every writer of suppressions. By primary key.
-- $1 tenants, $2 contacts. Erased contacts are left out.
select c.tenant_id, c.id, c.address, c.marketing_status, c.opted_in_at, c.merged_into
from (
    select w.tenant_id, w.id from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
    union
    select w.tenant_id, m.merged_into
    from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
    cross join lateral (
        select m.merged_into from contacts m
        where m.tenant_id = w.tenant_id and m.id = w.id and m.merged_into is not null
        offset 0
    ) m
) w
join contacts c on c.tenant_id = w.tenant_id and c.id = w.id
where c.status <> 'erased'
order by c.id for no key update of c
