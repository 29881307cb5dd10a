-- Fills empty fields of contacts; never replaces a value. $1 tenants, $2 contacts, then the fields.
-- The rows are locked in id order, like everywhere in the ledger.
with wanted as (
    select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[])
        as w (tenant_id, id, first_name, last_name, title, phone)
), locked as (
    select c.tenant_id, c.id
    from wanted w
    join contacts c on c.tenant_id = w.tenant_id and c.id = w.id and c.status <> 'erased'
    order by c.id, c.tenant_id
    for no key update of c
)
update contacts c
set first_name = coalesce(c.first_name, w.first_name),
    last_name = coalesce(c.last_name, w.last_name),
    title = coalesce(c.title, w.title),
    phone = coalesce(c.phone, w.phone),
    updated_at = now()
from locked h
join wanted w on w.tenant_id = h.tenant_id and w.id = h.id
where c.tenant_id = h.tenant_id and c.id = h.id
