-- The request that a send will come from, as a row of `send.sql`. $1 tenant, $2 send, $3 most mails of a batch in the priority lane, $4 and $5
-- batch and ordinal of the send, $6 what stands for the address of an erased copy. Served by primary keys.
-- None of a request that is handled: its sends were written, and are in the ledger until their month is dropped.
-- The requests of an array share a batch, by their ids. A larger batch takes the bulk lane. The request of a copy has the id of the batch, which
-- no other request shares then; its address is that of the mail.
select $2::uuid as "send_id!", p.message_kind as "message_kind!: _", null::uuid as "campaign_id?", p.message_id as "message_id?",
       p.sequence_id as "sequence_id?", p.enrollment_id as "enrollment_id?", p.step_id as "step_id?", null::text as "variant?",
       p.template_id as "template_id?", p.template_version as "template_version?", p.contact_id as "contact_id?", p.email as "email?",
       case when p.state <> 'rejected' then 'queued' when p.outcome = 'cancelled' then 'cancelled' else 'failed' end as "state!: _",
       null::text as "skip_reason?",
       case when p.state = 'rejected' and p.outcome <> 'cancelled' then p.outcome end as "failure_reason?",
       0::smallint as "attempt_count!", null::smallint as "smtp_code?", null::text as "enhanced_code?", null::text as "response?",
       null::text as "provider?", null::text as "provider_message_id?", null::timestamptz as "next_attempt_at?",
       case when p.state = 'rejected' then p.handled_at end as "decided_at?", '{}'::jsonb as "facts!: Json<SendFacts>",
       p.received_at as "created_at!", p.classification as "classification!: _", p.lane as "lane!: _", p.content_id as "content_id?",
       p.sender_id as "sender_id?", p.options as "options?: Json<MailOptions>"
from (
    select 'transactional' as message_kind, classification_of(c.kind) as classification,
           case when (r.options ->> 'is_bulk')::boolean
                     or exists (select from requests o
                                where o.tenant_id = $1 and o.id between batch_of($2) and last_id_of(batch_of($2)) offset $3)
                then 'bulk' else 'priority' end as lane,
           null::uuid as message_id, t.template_id, t.version as template_version, null::uuid as contact_id,
           r.payload ->> 'address' as email, (r.payload ->> 'content_id')::uuid as content_id,
           (r.payload ->> 'sender_id')::uuid as sender_id, r.state, r.outcome, r.received_at, r.handled_at,
           null::uuid as sequence_id, null::uuid as enrollment_id, null::uuid as step_id, r.options
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
           c.address, m.content_id, m.sender_id, r.state, r.outcome, r.received_at, r.handled_at, q.sequence_id, q.enrollment_id,
           q.step_id, r.options
    from message_recipients p
    join messages m on m.tenant_id = $1 and m.id = p.message_id
    join requests r on r.tenant_id = $1 and r.id = p.message_id
    left join sequence_sends q on q.tenant_id = $1 and q.send_id = $2
    left join contacts c on c.tenant_id = $1 and c.id = p.contact_id and c.status <> 'erased'
    where p.tenant_id = $1 and p.send_id = $2
) p
where p.state <> 'handled'
