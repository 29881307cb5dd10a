-- Fenced sends that a server accepted, if the fence's token still matches: what most results are, so it sets no more than they need; their
-- fence has set the provider. A row that has moved meanwhile is left alone; what is sent never moves again. The row is also the fact
-- (`acceptances`), which is noted for subscribers. Answers the position of each that moved. Primary key; no indexed column changes, so
-- updates stay HOT.
with accepted as (
    update sends s
    set state = 'sent', reason = null, fence_token = null, lease_until = null, decided_at = now(), smtp_code = a.smtp_code,
        enhanced_code = a.enhanced_code, response = a.response, provider_message_id = a.provider_message_id
    from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int2[], $5::text[], $6::text[], $7::text[]) with ordinality
        as a (tenant_id, id, token, smtp_code, enhanced_code, response, provider_message_id, position)
    where s.tenant_id = a.tenant_id and s.id = a.id and s.month = $8 and s.state = 'fenced' and s.fence_token = a.token
    returning s.tenant_id, s.id, a.position,
        -- A bounce may have been reported before the server's answer was recorded.
        delivers_at_once(s.provider) and s.bounced_at is null as delivered
), noted as (
    insert into outbox (tenant_id, source, month, sends, ids)
    select m.tenant_id, 'events', $8, array_agg(m.id), array_agg(m.id)
    from accepted m
    -- An array: in a join, the function would be asked for each mail.
    where m.tenant_id = any (array(select subscribed_tenants((select array_agg(distinct tenant_id) from accepted))))
    group by m.tenant_id
)
select position as "position!", coalesce(delivered, false) as "delivered!" from accepted
