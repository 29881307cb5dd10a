-- Notices, with the address of the contact they are about. $1 tenants, $2 ids. Primary keys.
select w.tenant_id as "tenant_id!", w.id as "id!", n.type as "notice_type!", n.product as "product?", n.contact_id as "contact_id?",
       n.subject_id as "subject_id?", n.occurred_at as "occurred_at!", n.recorded_at as "recorded_at!", n.data as "data!",
       c.address as "address?"
from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
cross join lateral (
    select n.type, n.product, n.contact_id, n.subject_id, n.occurred_at, n.recorded_at, n.data
    from notices n where n.tenant_id = w.tenant_id and n.id = w.id
    offset 0
) n
left join lateral (
    select c.address from contacts c where c.tenant_id = w.tenant_id and c.id = n.contact_id and c.status <> 'erased'
    offset 0
) c on true
