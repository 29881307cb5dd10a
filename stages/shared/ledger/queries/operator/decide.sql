-- Decides sends that are open or unknown by an operator's evidence. Writes the facts and gives back the room of a failure under the
-- frequency cap. $1 tenants, $2 sends, $3 months, in their order; $4 `sent` or `failed`; $5 the states it may be decided from; $6 the reason
-- of a failure; $7 the fact's detail. Answers the decided sends. The batches are locked. Primary keys throughout.
with asked as (
    select * from unnest($1::uuid[], $2::uuid[], $3::date[]) as u (tenant_id, id, month)
), before as (
    select a.tenant_id, a.id, a.month, s.state, case when s.state = 'unknown' then s.decided_at end as doubted_at
    from asked a
    cross join lateral (
        select s.state, s.decided_at from sends s where s.tenant_id = a.tenant_id and s.id = a.id and s.month = a.month for no key update
    ) s
    where s.state = any($5)
), changed as (
    update sends s
    set state = $4, reason = $6, fence_token = null, lease_until = null, next_attempt_at = null, decided_at = now()
    from before b
    where s.tenant_id = b.tenant_id and s.id = b.id and s.month = b.month
    returning b.tenant_id, s.id, s.month, b.state as was, b.doubted_at, s.decided_at, s.attempts,
        $4 = 'sent' and delivers_at_once(s.provider) and s.bounced_at is null as delivered
), uncapped as (
    delete from capped_sends k using changed c where $4 = 'failed' and k.tenant_id = c.tenant_id and k.send_id = c.id
), facts as (
    insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
    select c.tenant_id, c.id, gen_random_uuid(), c.month, $4, now(), $7::jsonb || jsonb_build_object('attempt', c.attempts)
    from changed c
)
select tenant_id as "tenant_id!", id as "id!", was as "was!: SendState", doubted_at, decided_at as "decided_at!",
       coalesce(delivered, false) as "delivered!"
from changed
