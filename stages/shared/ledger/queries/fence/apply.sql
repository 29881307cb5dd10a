-- Moves sends from their expected state to the next, and writes the facts: all but fences and plain acceptances. A send that was not fenced
-- must have the expected attempts (`tried`); one that was, the fence's token. An acceptance may also carry the token of an attempt whose
-- outcome was unknown. A row that has moved meanwhile is left alone. Answers the position of each that moved, and since when its outcome was
-- unknown. Primary key; no indexed column changes, so updates stay HOT.
with asked as (
    select *
    from unnest(
        $1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::int2[], $8::text[], $9::text[],
        $10::float8[], $11::int2[], $12::int2[], $13::bool[], $14::text[], $15::uuid[], $17::text[], $18::text[], $19::int2[], $20::bool[], $21::bool[]
    ) with ordinality as u (tenant_id, id, token, from_state, to_state, reason, smtp_code, enhanced_code, response,
            wait_seconds, attempts, doubtful, bounced, event, event_id, provider, provider_message_id,
            tried, given_back, taken_back, position)
), known as (
    -- Since when an outcome is unknown. The batch is locked: nothing moves the send meanwhile.
    select a.*, case when a.from_state = 'unknown' then (
        select s.decided_at from sends s where s.tenant_id = a.tenant_id and s.id = a.id and s.month = $16) end as doubted_at
    from asked a
), moved as (
    update sends s
    set state = a.to_state,
        -- One that is only put off keeps its reason.
        reason = case when a.to_state = 'deferred' then coalesce(a.reason, s.reason) else a.reason end,
        fence_token = case when a.to_state = 'unknown' then s.fence_token end,
        lease_until = null,
        -- A send with a fence counts against the quota; one whose first fence is given back does not.
        fenced_at = case when not a.given_back then s.fenced_at end,
        next_attempt_at = now() + make_interval(secs => a.wait_seconds),
        attempts = s.attempts + a.attempts,
        doubtful = s.doubtful + a.doubtful,
        decided_at = case when a.to_state not in ('queued', 'deferred') then now() end,
        smtp_code = coalesce(a.smtp_code, s.smtp_code),
        enhanced_code = case when a.smtp_code is null then s.enhanced_code else a.enhanced_code end,
        response = coalesce(a.response, s.response),
        -- The one by which a reported delivery was counted stays. No other had what is taken back.
        provider = case when s.delivered_at is not null then s.provider when a.taken_back then a.provider
                        else coalesce(a.provider, s.provider) end,
        provider_message_id = coalesce(a.provider_message_id, s.provider_message_id),
        -- One that bounced before has been counted.
        bounced_at = case when a.bounced then coalesce(s.bounced_at, now()) else s.bounced_at end
    from known a
    where s.tenant_id = a.tenant_id and s.id = a.id and s.month = $16 and s.state = a.from_state
      and case when a.tried is null then s.fence_token = a.token or a.to_state = 'sent' and s.doubted_token = a.token
               else s.attempts = a.tried end
    returning s.tenant_id, s.id, a.position, s.state, s.attempts, s.reason, a.event, a.event_id, a.smtp_code, a.enhanced_code, a.response, a.doubted_at,
        a.bounced and s.bounced_at = now() as bounced,
        -- A bounce may have been reported before the server's answer was recorded.
        s.state = 'sent' and delivers_at_once(s.provider) and s.bounced_at is null as delivered
), facts as (
    insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
    select m.tenant_id, m.id, m.event_id, $16, m.event, now(),
           jsonb_strip_nulls(jsonb_build_object(
               'attempt', m.attempts, 'reason', m.reason, 'smtp_code', m.smtp_code, 'enhanced_code', m.enhanced_code,
               'response', m.response))
    from moved m
    where m.event is not null
    on conflict do nothing
)
select position as "position!", coalesce(delivered, false) as "delivered!", coalesce(bounced, false) as "bounced!", doubted_at from moved
