-- The batches of a launch, part by part. $1 tenant, $2 campaign, $3 launch prefix, $4 month, $5 sends per batch; then for each
-- part its first batch's number, its sends, its variant, true if its batches are `held` for the winner, and when it is due. They pin the content of the
-- variant, or else of the campaign, as it is now.
insert into batches (tenant_id, id, month, kind, lane, classification, campaign_id, content_id, sender_id, variant, state, announce_after, due_at, size, queued)
select c.tenant_id, ($3::text || lpad(to_hex((p.first_batch + k) << 9), 9, '0'))::uuid, $4, 'campaign', 'bulk', c.classification, c.id,
       coalesce(v.content_id, c.content_id), c.sender_profile_id, p.variant, case when p.held then 'held' when p.due > now() then 'timed' else 'waiting' end,
       case when p.due > now() then p.due end, case when p.due > now() then p.due end,
       least($5, p.sends - k * $5)::integer, least($5, p.sends - k * $5)::integer
from campaigns c
cross join unnest($6::bigint[], $7::bigint[], $8::text[], $9::bool[], $10::timestamptz[])
    as p (first_batch, sends, variant, held, due)
left join campaign_variants v on v.tenant_id = c.tenant_id and v.campaign_id = c.id and v.variant = p.variant
cross join generate_series(0, (p.sends + $5::bigint - 1) / $5 - 1) as k
where c.tenant_id = $1 and c.id = $2
