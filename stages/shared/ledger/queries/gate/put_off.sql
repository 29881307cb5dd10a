-- Puts owed sends of one batch off ($5 ids, $6 until when, $7 why), without an attempt and without a fact. Answers how
-- many were queued. The batch is locked.
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
    returning b.state as was
)
select count(*) filter (where was = 'queued')::integer as "queued!" from changed
