-- The request that a send will come from. $1 tenant, $2 send, $3 most mails of a batch in the priority lane, $4 and $5 batch and ordinal of the
-- send, $6 what stands for the address of an erased copy. Served by primary keys.
-- The requests of an array share a batch, by their ids. A larger batch takes the bulk lane. The request of a copy has the id of the batch, which
-- no other request shares then; its address is that of the mail.
select 'transactional' as "message_kind!: MessageKind", classification_of(c.kind) as "classification!: Classification",
       case when (r.options ->> 'is_bulk')::boolean
                 or exists (select from requests o
                            where o.tenant_id = $1 and o.id between batch_of($2) and last_id_of(batch_of($2)) offset $3)
            then 'bulk' else 'priority' end as "lane!: Lane",
       null::uuid as "message_id?", t.template_id as "template_id?", t.version as "template_version?", null::uuid as "contact_id?",
       r.payload ->> 'address' as "email?", (r.payload ->> 'content_id')::uuid as "content_id?",
       (r.payload ->> 'sender_id')::uuid as "sender_id?", r.state = 'rejected' as "rejected!", r.outcome as "outcome?",
       r.received_at as "received_at!", r.handled_at as "handled_at?", null::uuid as "sequence_id?", null::uuid as "enrollment_id?",
       null::uuid as "step_id?", r.options as "options?: Json<MailOptions>"
from requests r
-- Row security keeps the cast out of the condition of an index, unless it is done outside.
left join lateral (
    select c.kind from contents c where c.tenant_id = $1 and c.id = (r.payload ->> 'content_id')::uuid offset 0
) c on true
left join lateral template_version_of($1, (r.payload ->> 'content_id')::uuid) t on true
where r.tenant_id = $1 and r.id in ($2, $4) and r.kind = 'transactional'
  and (r.id = $2 or r.options -> 'copies' -> ($5::integer - 1) ->> 'address' <> $6::text)
union all
select case when m.is_test then 'test' else 'one_off' end, m.classification, 'priority', m.id, null, null, p.contact_id,
       c.address, m.content_id, m.sender_id, r.state = 'rejected', r.outcome, r.received_at, r.handled_at, q.sequence_id, q.enrollment_id, q.step_id, r.options
from message_recipients p
join messages m on m.tenant_id = $1 and m.id = p.message_id
join requests r on r.tenant_id = $1 and r.id = p.message_id
left join sequence_sends q on q.tenant_id = $1 and q.send_id = $2
left join contacts c on c.tenant_id = $1 and c.id = p.contact_id and c.status <> 'erased'
where p.tenant_id = $1 and p.send_id = $2
