-- The acceptances of a tenant's next batches, after batch $2, that were recorded from $3 to $4: of $5 batches at most, and of no more once
-- these have $6 sent mails. Answers in each row the last batch that was looked at; one row at least. Primary keys.
with next as materialized (
    select id, month, sent, created_at, done_at from batches where tenant_id = $1 and id > $2 order by id limit $5
), wanted as (
    select id, month, sum(sent) over (order by id) - sent as sent_before
    from next
    -- `done_at` is when the transaction began that ended the batch: an acceptance before it may have begun a little later.
    where sent > 0 and created_at < $4 and (done_at is null or done_at >= $3::timestamptz - interval '10 minutes')
), taken as materialized (
    select id, month from wanted where sent_before < $6
)
select l.id as last_batch, f.id as "send_id?", f.month as "month?"
from (
    select case when (select count(*) from taken) < (select count(*) from wanted)
                then (select id from taken order by id desc limit 1) else (select id from next order by id desc limit 1) end as id
) l
left join (
    select f.send_id as id, f.month
    from taken t
    cross join lateral (
        select a.send_id, a.month from acceptances a
        where a.tenant_id = $1 and a.send_id between t.id and last_id_of(t.id) and a.month = t.month
          and a.recorded_at >= $3 and a.recorded_at < $4
        offset 0
    ) f
) f on true
