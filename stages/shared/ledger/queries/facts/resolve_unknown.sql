-- Unknown sends with evidence that a provider accepted them: they are sent. One that was to be tried once more is not tried. $1 tenants,
-- $2 sends, $3 months, $4 the earliest time of the evidence, $5 providers, $6 the mails' ids with the provider. Answers the resolved
-- sends. Served by the primary key, one by one and in the order of the ids, as in fold.sql; the batches are locked.
with asked as (
    select *
    from unnest($1::uuid[], $2::uuid[], $3::date[], $4::timestamptz[], $5::text[], $6::text[])
        as w (tenant_id, id, month, at, provider, message_id)
), doubted as (
    select s.tenant_id, s.id, s.month, s.state, case when s.state = 'unknown' then s.decided_at end as doubted_at,
           a.at, a.provider, a.message_id
    from (select * from asked order by tenant_id, id) a
    cross join lateral (
        select s.tenant_id, s.id, s.month, s.state, s.doubtful, s.decided_at from sends s
        where s.tenant_id = a.tenant_id and s.id = a.id and s.month = a.month for no key update
    ) s
    -- Checked after the lock: other evidence may have come first.
    where s.state = 'unknown' or s.state in ('queued', 'deferred') and s.doubtful > 0
), resolved as (
    update sends s
    set state = 'sent', reason = null, fence_token = null, lease_until = null, next_attempt_at = null,
        -- Between the fence and now: the provider's clock may be wrong.
        decided_at = greatest(least(d.at, now()), s.fenced_at),
        provider = coalesce(s.provider, d.provider), provider_message_id = coalesce(s.provider_message_id, d.message_id)
    from doubted d
    where s.tenant_id = d.tenant_id and s.id = d.id and s.month = d.month and s.month = any ($3::date[])
    returning s.tenant_id, s.id, s.month, d.state, d.doubted_at, s.decided_at, s.attempts, s.provider,
        delivers_at_once(s.provider) and s.bounced_at is null as delivered
), facts as (
    insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
    select t.tenant_id, t.id, gen_random_uuid(), t.month, 'sent', t.decided_at,
           jsonb_build_object('attempt', t.attempts, 'evidence', true, 'provider', t.provider)
    from resolved t
)
select tenant_id, id, state as "was!: SendState", doubted_at, decided_at as "decided_at!", coalesce(delivered, false) as "delivered!"
from resolved
