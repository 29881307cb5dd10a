-- The product links of these tenants, each with whether the product has a feed, once for each subscription that is active or paused. A
-- product that linked a tenant twice knows it by the name it used first. `tenant_links_by_tenant`, `webhook_subscriptions_live`, and a
-- primary key.
select w.id as "tenant_id!", k.product as "product!", k.environment as "environment!: Environment",
       k.product_tenant_id as "product_tenant_id!",
       exists (select from event_feeds f where f.product = k.product and f.environment = k.environment) as "feed!",
       s.id as "subscription_id?", s.status as "status?: SubscriptionStatus", s.events as "events?"
from unnest($1::uuid[]) as w (id)
cross join lateral (
    select distinct on (k.product) k.product, k.environment, k.product_tenant_id
    from tenant_links k
    where k.tenant_id = w.id
    order by k.product, k.created_at, k.product_tenant_id
) k
left join webhook_subscriptions s on s.tenant_id = w.id and s.product = k.product and s.status <> 'disabled'
