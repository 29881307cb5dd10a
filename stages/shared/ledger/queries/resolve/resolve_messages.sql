-- One batch per message and one send per recipient, announced for the first time. $1 tenants,
-- $2 messages (each also its batch's and its request's id), $3 months, $4 seconds until it is announced again. Answers the batches.
with wanted as (
    select * from unnest($1::uuid[], $2::uuid[], $3::date[]) as w (tenant_id, message_id, month)
), recipient as (
    select w.tenant_id, w.message_id, w.month, r.send_id, r.contact_id
    from wanted w
    join message_recipients r on r.tenant_id = w.tenant_id and r.message_id = w.message_id
), counted as (
    select tenant_id, message_id, count(*)::integer as size, array_agg(send_id) as send_ids, array_agg(contact_id) as contact_ids
    from recipient
    group by tenant_id, message_id
), batch as (
    insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, state, announce_after,
                         announcement, size, queued)
    select w.tenant_id, w.message_id, w.month, case when m.is_test then 'test' else 'one_off' end, 'priority', m.classification, m.content_id, m.sender_id, 'announced',
           now() + make_interval(secs => $4), 1, c.size, c.size
    from wanted w
    join messages m on m.tenant_id = w.tenant_id and m.id = w.message_id
    join counted c on c.tenant_id = w.tenant_id and c.message_id = w.message_id
), send as (
    insert into sends (tenant_id, id, month, request_id, contact_id)
    select tenant_id, send_id, month, message_id, contact_id from recipient
)
select c.tenant_id as "tenant_id!", c.message_id as "batch_id!", m.content_id, m.sender_id, m.is_test,
       m.classification as "classification: Classification", c.send_ids as "send_ids!", c.contact_ids as "contact_ids!"
from counted c
join messages m on m.tenant_id = c.tenant_id and m.id = c.message_id
