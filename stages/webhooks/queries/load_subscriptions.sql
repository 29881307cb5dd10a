-- The active and paused subscriptions of these tenants. `webhook_subscriptions_newest`.
select s.tenant_id, s.id, s.product, s.status as "status!: SubscriptionStatus", s.events
from unnest($1::uuid[]) as w (id)
join webhook_subscriptions s on s.tenant_id = w.id and s.status <> 'disabled'
