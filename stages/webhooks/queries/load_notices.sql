-- Notices, with the address of the contact they are about; without one, that of the suppression. $1 tenants, $2 ids. Primary keys.
-- `erased_with`: see `webhook_events`.
select w.tenant_id as "tenant_id!", w.id as "id!", n.type as "notice_type!", n.product as "product?", n.contact_id as "contact_id?",
       n.subject_id as "subject_id?", n.occurred_at as "occurred_at!", n.recorded_at as "recorded_at!", n.data as "data!",
       coalesce(c.address, s.address) as "address?", coalesce(n.contact_id, md5(s.address)::uuid) as "erased_with?"
from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
join notices n on n.tenant_id = w.tenant_id and n.id = w.id
left join contacts c on c.tenant_id = w.tenant_id and c.id = n.contact_id and c.status <> 'erased'
left join suppressions s
    on n.type = 'suppression.added' and n.contact_id is null and s.tenant_id = w.tenant_id and s.id = n.subject_id
