-- Fenced sends that a server accepted, if the fence's token still matches, and their facts: what most results are, so it sets no more than
-- they need; their fence has set the provider. A row that has moved meanwhile is left alone; what is sent never moves again, so no attempt's
-- fact is written twice. Answers the position of each that moved. Primary key; no indexed column changes, so updates stay HOT.
with accepted as (
    update sends s
    set state = 'sent', reason = null, fence_token = null, lease_until = null, decided_at = now(), smtp_code = a.smtp_code,
        enhanced_code = a.enhanced_code, response = a.response, provider_message_id = a.provider_message_id
    from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int2[], $5::text[], $6::text[], $7::text[], $8::uuid[]) with ordinality
        as a (tenant_id, id, token, smtp_code, enhanced_code, response, provider_message_id, event_id, position)
    where s.tenant_id = a.tenant_id and s.id = a.id and s.month = $9 and s.state = 'fenced' and s.fence_token = a.token
    returning s.tenant_id, s.id, s.attempts, s.smtp_code, s.enhanced_code, s.response, a.event_id, a.position,
        -- A bounce may have been reported before the server's answer was recorded.
        delivers_at_once(s.provider) and s.bounced_at is null as delivered
), facts as (
    insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
    select m.tenant_id, m.id, m.event_id, $9, 'sent', now(),
           jsonb_strip_nulls(jsonb_build_object(
               'attempt', m.attempts, 'smtp_code', m.smtp_code, 'enhanced_code', m.enhanced_code, 'response', m.response))
    from accepted m
)
select position as "position!", coalesce(delivered, false) as "delivered!" from accepted
