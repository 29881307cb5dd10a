-- Deletes deliveries older than $1 seconds, at most $2. Those that wait stay unless their subscription is disabled: those held by a pause
-- are as old when it ends. Served by `webhook_deliveries_by_age`: of all that waits, only what is old is looked at.
with gone as (
    delete from webhook_deliveries where ctid = any(array(
        select d.ctid from webhook_deliveries d
        where d.created_at < now() - make_interval(secs => $1)
          and not (d.status = 'pending' and exists (
              select from webhook_subscriptions s
              where s.tenant_id = d.tenant_id and s.id = d.subscription_id and s.status <> 'disabled'))
        order by d.created_at limit $2))
    returning 1
)
select count(*) as "gone!" from gone
