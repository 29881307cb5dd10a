-- Which of these events have a body for the product of the subscription. $1 tenants, $2 subscriptions, $3 events: many of few subscriptions,
-- each of which is looked up once. Primary keys, in this order, whatever the planner thinks of young tables: else it reads all events of the
-- product for each group of attempts.
select s.id, e.id as event_id
from (
    select s.tenant_id, s.id, s.product, w.events
    from (
        select w.tenant_id, w.id, array_agg(w.event_id) as events
        from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as w (tenant_id, id, event_id)
        group by w.tenant_id, w.id
    ) w
    cross join lateral (
        select s.tenant_id, s.id, s.product from webhook_subscriptions s where s.tenant_id = w.tenant_id and s.id = w.id offset 0
    ) s
    offset 0
) s
cross join lateral unnest(s.events) as w (event_id)
cross join lateral (
    select e.id from webhook_events e where e.tenant_id = s.tenant_id and e.product = s.product and e.id = w.event_id offset 0
) e
