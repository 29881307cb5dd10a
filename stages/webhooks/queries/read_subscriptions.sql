-- The current state of subscriptions. $1 tenants, $2 ids. Primary key.
select s.tenant_id, s.id, s.status as "status: SubscriptionStatus", s.url, s.secret, s.previous_secret, s.previous_until, s.failing_since
from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
join webhook_subscriptions s on s.tenant_id = w.tenant_id and s.id = w.id
