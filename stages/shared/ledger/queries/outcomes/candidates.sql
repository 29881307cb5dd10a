-- The contacts that outcomes may be about. $1 their positions in the group, $2 tenants, $3 addresses, $4 numbers. The contact with the
-- address, and of those with the number (all contacts of a company share it) fifty: that with the address, then active and older ones; of a
-- merged contact the one that is left. Look-ups by contacts' unique key and contacts_by_dot_number; `offset 0` keeps the planner from
-- joining whole tables that have no statistics yet.
select w.place as "place!", c.id as "contact_id!", c.by_email as "by_email!"
from unnest($1::int[], $2::uuid[], $3::text[], $4::bigint[]) as w (place, tenant_id, email, dot_number)
left join lateral (
    select coalesce(c.merged_into, c.id) as id
    from contacts c where c.tenant_id = w.tenant_id and c.address = w.email
    offset 0
) named on true
cross join lateral (
    select * from (
        select named.id, true as by_email, 0 as rank where named.id is not null
        union all
        (select coalesce(c.merged_into, c.id), false,
                (row_number() over (order by coalesce(c.merged_into, c.id) = named.id desc, c.status = 'active' desc,
                                             c.created_at, c.id))::integer
         from contacts c where c.tenant_id = w.tenant_id and c.dot_number = w.dot_number
         order by coalesce(c.merged_into, c.id) = named.id desc, c.status = 'active' desc, c.created_at, c.id limit 50)
    ) found
    offset 0
) c
order by w.place, c.rank
