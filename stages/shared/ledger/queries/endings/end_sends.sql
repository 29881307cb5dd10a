-- Ends queued and deferred sends without an attempt, and writes the facts. $1 tenants, $2 first and $3 last id of the sends of each ending,
-- $4 months, $5 states, $6 reasons, $7 codes, $10 the contact that the send must be to (null: any). A cancelled send is no fact. A send whose
-- attempt before may have arrived gets the state $8 for the reason $9, whatever withholds the next one: later proof can still correct it.
-- Answers how many of each ending left which state for which. The batches are locked. Primary key of `sends`.
with asked as (
    select *
    from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::date[], $5::text[], $6::text[], $7::text[], $10::uuid[])
        with ordinality as w (tenant_id, first, last, month, state, reason, code, contact_id, position)
), before as (
    select a.position, s.*, a.state as planned, a.reason, a.code
    from (select * from asked order by tenant_id, first) a
    cross join lateral (
        select s.tenant_id, s.id, s.month, s.state as was, s.doubtful > 0 as is_doubted from sends s
        where s.tenant_id = a.tenant_id and s.id between a.first and a.last and s.month = a.month and s.state in ('queued', 'deferred')
          and (a.contact_id is null or s.contact_id = a.contact_id)
        order by s.id
        for update
    ) s
), ended as (
    update sends s
    set state = case when b.is_doubted then $8 else b.planned end,
        reason = case when b.is_doubted then $9 else b.reason end,
        response = case when b.is_doubted then s.response else coalesce(b.code, s.response) end,
        decided_at = now(), next_attempt_at = null
    from before b
    where s.tenant_id = b.tenant_id and s.id = b.id and s.month = b.month
    returning s.tenant_id, s.id, s.month, s.state, s.reason, s.attempts, b.position, b.was, b.is_doubted, b.code
), facts as (
    insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
    select tenant_id, id, gen_random_uuid(), month, state, now(),
           jsonb_strip_nulls(jsonb_build_object(
               'reason', reason, 'code', case when not is_doubted then code end, 'attempt', case when is_doubted then attempts end))
    from ended
    where state <> 'cancelled'
)
select position as "position!", was as "was!: SendState", state as "state!: SendState", count(*)::integer as "sends!"
from ended
group by position, was, state
