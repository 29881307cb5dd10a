-- Deletes bodies older than $1 seconds, at most $2. Served by `webhook_events_by_age`.
with gone as (
    delete from webhook_events where ctid = any(array(
        select e.ctid from webhook_events e
        where e.created_at < now() - make_interval(secs => $1)
        order by e.created_at limit $2
        for update skip locked))
    returning 1
)
select count(*) as "gone!" from gone
