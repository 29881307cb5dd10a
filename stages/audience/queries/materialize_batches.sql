-- The batches of a launch of $5 sends, waiting to be handed on. $1 tenant, $2 campaign, $3 launch prefix, $4 month,
-- $6 sends per batch. They pin what the campaign would render now.
insert into batches (tenant_id, id, month, kind, lane, classification, campaign_id, content_id, sender_id, size, queued)
select c.tenant_id, ($3::text || lpad(to_hex(k << 9), 9, '0'))::uuid, $4, 'campaign', 'bulk', c.classification, c.id, c.content_id,
       c.sender_profile_id, least($6, $5 - k * $6)::integer, least($6, $5 - k * $6)::integer
from campaigns c
cross join generate_series(0, ($5::bigint + $6::bigint - 1) / $6 - 1) as k
where c.tenant_id = $1 and c.id = $2
