-- The requests of a tenant from one product, newest first. Every plan is made for its parameters. Served by `requests_newest`, which has the
-- product; what few requests are by an index of its own: `requests_rejected`, `requests_by_kind` for all kinds but transactional mail, and
-- `requests_waiting` for those that are not handled, each of which has a time to be announced at.
select id as request_id, kind, state, outcome, received_at, handled_at,
       jsonb_build_object(
           'campaign_id', payload -> 'campaign_id', 'message_id', payload -> 'message_id',
           'send_id', payload -> 'send_id', 'template_id', payload -> 'template_id',
           'sender_id', payload -> 'sender_id') as "body!: Json<RequestIds>"
from requests
where tenant_id = $1 and product = $2 and environment = $3 and ($4::text is null or kind = $4)
  and ($5::text is null or state = $5) and ($5 is distinct from 'accepted' or announce_after is not null)
  and ($6::timestamptz is null or received_at >= $6)
  and ($7::timestamptz is null or received_at < $7)
  and ($8::timestamptz is null or (received_at, id) < ($8, $9::uuid))
order by received_at desc, id desc limit $10
