-- The product links of these tenants, and whether the product has a feed. A product that linked a tenant twice knows it
-- by the name it used first. `tenant_links_by_tenant`, then primary keys.
select w.id as "tenant_id!", k.product as "product!", k.environment as "environment!: Environment",
       k.product_tenant_id as "product_tenant_id!",
       exists (select from event_feeds f where f.product = k.product and f.environment = k.environment) as "feed!"
from unnest($1::uuid[]) as w (id)
cross join lateral (
    select distinct on (k.product) k.product, k.environment, k.product_tenant_id
    from tenant_links k
    where k.tenant_id = w.id
    order by k.product, k.created_at, k.product_tenant_id
) k
