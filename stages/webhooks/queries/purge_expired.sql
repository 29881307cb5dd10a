-- Deletes deliveries, then bodies, older than $1 seconds: at most $2 each. Deliveries that wait stay with their bodies unless their
-- subscription is disabled: those held by a pause are as old when it ends. Served by `webhook_deliveries_by_age` and
-- `webhook_events_by_age`: of all that waits, only what is old is looked at.
with old as not materialized (
    select d.ctid as place, d.tenant_id, d.product, d.event_id, d.created_at,
           d.status = 'pending' and exists (
               select from webhook_subscriptions s
               where s.tenant_id = d.tenant_id and s.id = d.subscription_id and s.status <> 'disabled') as is_held
    from webhook_deliveries d
    where d.created_at < now() - make_interval(secs => $1)
), deliveries as (
    delete from webhook_deliveries where ctid = any(array(
        select o.place from old o where not o.is_held order by o.created_at limit $2))
    returning 1
), events as (
    delete from webhook_events where ctid = any(array(
        select e.ctid from webhook_events e
        where e.created_at < now() - make_interval(secs => $1)
          and not exists (select from old h
                          where h.is_held and h.tenant_id = e.tenant_id and h.product = e.product and h.event_id = e.id)
        order by e.created_at limit $2))
    returning 1
)
select (select count(*) from deliveries) + (select count(*) from events) as "gone!"
