-- Deletes bodies older than $1 seconds, at most $2, except those of deliveries that `purge_deliveries.sql` keeps. All old deliveries are
-- looked through: run it when that has left no others. Served by `webhook_events_by_age` and `webhook_deliveries_by_age`.
with held as not materialized (
    select d.tenant_id, d.product, d.event_id
    from webhook_deliveries d
    where d.created_at < now() - make_interval(secs => $1) and d.status = 'pending'
      and exists (
          select from webhook_subscriptions s
          where s.tenant_id = d.tenant_id and s.id = d.subscription_id and s.status <> 'disabled')
), gone as (
    delete from webhook_events where ctid = any(array(
        select e.ctid from webhook_events e
        where e.created_at < now() - make_interval(secs => $1)
          and not exists (select from held h where h.tenant_id = e.tenant_id and h.product = e.product and h.event_id = e.id)
        order by e.created_at limit $2))
    returning 1
)
select count(*) as "gone!" from gone
