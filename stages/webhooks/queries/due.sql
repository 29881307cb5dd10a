-- The most overdue deliveries of each of these subscriptions. $1 tenants, $2 subscriptions, $3 the limit for each. Primary key.
select w.subscription_id as "subscription_id!", q.delivery_id, q.due_at
from unnest($1::uuid[], $2::uuid[], $3::bigint[]) as w (tenant_id, subscription_id, capacity)
cross join lateral (
    select q.delivery_id, q.due_at from webhook_queue q
    where q.tenant_id = w.tenant_id and q.subscription_id = w.subscription_id and q.due_at <= now()
    order by q.due_at, q.delivery_id
    limit w.capacity
) q
