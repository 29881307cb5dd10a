-- Puts owed sends of one batch off ($5 ids, $6 until when, $7 why), without an attempt and without a fact, and moves the batch's
-- counters. The batch, which is locked, becomes resting if all that is left is deferred.
-- $1 tenant, $2 first and $3 last id of the batch, $4 month. Served by the primary key of sends.
with held as (
    select * from unnest($5::uuid[], $6::timestamptz[], $7::text[]) as v (id, until, reason)
), before as (
    select s.id, s.state, v.until, v.reason
    from sends s
    join held v on v.id = s.id
    where s.tenant_id = $1 and s.id between $2 and $3 and s.month = $4 and s.state in ('queued', 'deferred')
    order by s.id
    for update of s
), changed as (
    update sends s
    set state = 'deferred', reason = b.reason, next_attempt_at = b.until
    from before b
    where s.tenant_id = $1 and s.id between $2 and $3 and s.month = $4 and s.id = b.id
    returning s.id, b.state as was, b.until
), counted as (
    select count(*) filter (where was = 'queued')::integer as queued, min(until) as until from changed
), left_open as (
    select n.queued, b.queued + b.fenced - n.queued = 0 as is_resting,
           least(n.until, (
               select min(s.next_attempt_at) from sends s
               where s.tenant_id = $1 and s.id between $2 and $3 and s.month = $4 and s.state = 'deferred'
                 and s.id not in (select c.id from changed c))) as due
    from batches b
    cross join counted n
    where b.tenant_id = $1 and b.id = $2
)
update batches b
set queued = b.queued - n.queued,
    deferred = b.deferred + n.queued,
    state = case when n.is_resting then 'resting' else b.state end,
    announce_after = case when n.is_resting then n.due else b.announce_after end,
    quiet_at = case when b.state = 'announced' and n.is_resting then now() else b.quiet_at end
from left_open n
where b.tenant_id = $1 and b.id = $2 and b.state <> 'done'
