-- Notices, with the address of the contact they are about; without one, that of the suppression. $1 tenants, $2 ids. Primary keys.
-- `erased_with`: see `webhook_events`.
select w.tenant_id as "tenant_id!", w.id as "id!", n.type as "notice_type!", n.product as "product?", n.contact_id as "contact_id?",
       n.subject_id as "subject_id?", n.occurred_at as "occurred_at!", n.recorded_at as "recorded_at!", n.data as "data!",
       coalesce(c.address, s.address) as "address?", coalesce(n.contact_id, md5(s.address)::uuid) as "erased_with?",
       r.options as "options?: Json<MailOptions>"
from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
join notices n on n.tenant_id = w.tenant_id and n.id = w.id
left join contacts c on c.tenant_id = w.tenant_id and c.id = n.contact_id and c.status <> 'erased'
left join suppressions s
    on n.type = 'suppression.added' and n.contact_id is null and s.tenant_id = w.tenant_id and s.id = n.subject_id
-- The options of a rejected mail are read from its request, with which they are erased. The request of a one-off message or of a copy has
-- the id of the batch. `offset 0`: row security keeps the function out of the condition of an index, unless it is done outside.
left join lateral (
    select r.options from requests r
    where n.type = 'email.failed' and r.tenant_id = w.tenant_id and r.id in (n.subject_id, batch_of(n.subject_id))
      and (r.id = n.subject_id or r.kind = 'message' or r.options ? 'copies')
    offset 0
) r on true
