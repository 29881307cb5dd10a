-- Deletes deliveries, then bodies, older than $1 seconds: at most $2 each. Deliveries that wait stay with their bodies unless their
-- subscription is disabled: those held by a pause are as old when it ends. Served by `webhook_deliveries_by_age` and `webhook_events_by_age`; what is held is found along the queue.
with held as materialized (
    select d.tenant_id, d.id, d.product, d.event_id
    from webhook_subscriptions s
    cross join lateral (
        select q.delivery_id from webhook_queue q where q.tenant_id = s.tenant_id and q.subscription_id = s.id
    ) q
    cross join lateral (
        select d.tenant_id, d.id, d.product, d.event_id from webhook_deliveries d
        where d.tenant_id = s.tenant_id and d.id = q.delivery_id and d.created_at < now() - make_interval(secs => $1)
        offset 0
    ) d
    where s.status <> 'disabled'
), deliveries as (
    delete from webhook_deliveries where ctid = any(array(
        select d.ctid from webhook_deliveries d
        where d.created_at < now() - make_interval(secs => $1)
          and not exists (select from held h where h.tenant_id = d.tenant_id and h.id = d.id)
        order by d.created_at limit $2))
    returning 1
), events as (
    delete from webhook_events where ctid = any(array(
        select e.ctid from webhook_events e
        where e.created_at < now() - make_interval(secs => $1)
          and not exists (select from held h where h.tenant_id = e.tenant_id and h.product = e.product and h.event_id = e.id)
        order by e.created_at limit $2))
    returning 1
)
select (select count(*) from deliveries) + (select count(*) from events) as "gone!"
