-- The remainder of an A/B test gets the winner's content and waits for dispatch. $1 tenant, $2 campaign, which is locked,
-- $3 the winner. Some 2,000 batches for a million recipients, locked in their order.
with remainder as (
    select b.tenant_id, b.id
    from batches b
    where b.tenant_id = $1 and b.campaign_id = $2 and b.state = 'held'
    order by b.tenant_id, b.id
    for update of b
)
update batches b
set state = 'waiting', variant = v.variant, content_id = v.content_id
from remainder r
join campaign_variants v on v.tenant_id = $1 and v.campaign_id = $2 and v.variant = $3
where b.tenant_id = r.tenant_id and b.id = r.id
