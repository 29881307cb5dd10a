-- Deletes deliveries older than $1 seconds, at most $2, with their queue entries. One that waits stays until it was due as long ago: what a
-- replay asked for again is tried, and what a pause holds goes. Served by `webhook_deliveries_by_age`.
with gone as (
    delete from webhook_deliveries where ctid = any(array(
        select d.ctid from webhook_deliveries d
        where d.created_at < now() - make_interval(secs => $1)
          and (d.status <> 'pending' or coalesce(d.next_attempt_at, d.created_at) < now() - make_interval(secs => $1))
        order by d.created_at limit $2
        for update skip locked))
    returning tenant_id, subscription_id, id, status, next_attempt_at
), waited as (
    select q.entry
    from gone g
    cross join lateral (
        select q.ctid as entry from webhook_queue q
        where q.tenant_id = g.tenant_id and q.subscription_id = g.subscription_id and q.due_at = g.next_attempt_at and q.delivery_id = g.id
        for update skip locked
    ) q
    where g.status = 'pending'
), taken_out as (
    delete from webhook_queue where ctid = any(array(select entry from waited))
)
select count(*) as "gone!", count(*) filter (where status = 'pending') as "undelivered!" from gone
