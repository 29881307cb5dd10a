-- Sends of one batch that cannot be rendered: queued or deferred becomes failed, with its fact. Answers the previous state of each,
-- for the batch's counters. The caller has locked the batch row before.
with owed as (
    select s.id, s.state, f.code
    from unnest($4::uuid[], $5::text[]) as f (id, code)
    join sends s on s.tenant_id = $1 and s.id = f.id and s.month = $2
    where s.id between $3 and $6 and s.state in ('queued', 'deferred')
    order by s.id
    for update of s
), failed as (
    update sends s
    set state = 'failed', reason = 'render', response = owed.code, next_attempt_at = null, decided_at = now()
    from owed
    where s.tenant_id = $1 and s.id = owed.id and s.month = $2
    returning s.id, owed.state as was, owed.code
), facts as (
    insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
    select $1, id, gen_random_uuid(), $2, 'failed', now(), jsonb_build_object('reason', 'render', 'code', code)
    from failed
)
select count(*) filter (where was = 'queued') as "queued!", count(*) filter (where was = 'deferred') as "deferred!"
from failed
