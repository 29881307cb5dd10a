-- One batch and one send per request, announced for the first time, and the request handled. $1 tenants, $2 requests,
-- $3 sends (each also its batch's id), $4 months, $5 contacts, $6 contents, $7 senders, $8 seconds until it is rung again.
with wanted as (
    select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::date[], $5::uuid[], $6::uuid[], $7::uuid[])
        as w (tenant_id, request_id, send_id, month, contact_id, content_id, sender_id)
), batch as (
    insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, state, announce_after,
                         announcement, size, queued)
    select tenant_id, send_id, month, 'transactional', 'priority', 'transactional', content_id, sender_id, 'announced',
           now() + make_interval(secs => $8), 1, 1, 1
    from wanted
), send as (
    insert into sends (tenant_id, id, month, request_id, contact_id)
    select tenant_id, send_id, month, request_id, contact_id from wanted
)
update requests r
set state = 'handled', outcome = 'resolved', announce_after = null, handled_at = now()
from wanted w
where r.tenant_id = w.tenant_id and r.id = w.request_id
