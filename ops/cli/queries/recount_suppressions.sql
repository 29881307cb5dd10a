-- Suppression totals that differ from a count of the suppressions. $1 a tenant, or null for all.
with booked as (
    select tenant_id, reason, sum(count) as count
    from (select tenant_id, reason, count from suppression_totals
          union all
          select tenant_id, reason, added - removed from suppression_changes) t
    where $1::uuid is null or tenant_id = $1
    group by 1, 2
), counted as (
    select tenant_id, reason, count(*) as count from suppressions where $1::uuid is null or tenant_id = $1 group by 1, 2
)
select coalesce(b.tenant_id, c.tenant_id) as "tenant_id!", coalesce(b.reason, c.reason) as "counter!",
       'suppressions' as "of!", coalesce(b.count, 0)::bigint as "stored!", coalesce(c.count, 0)::bigint as "recounted!"
from booked b
full join counted c on c.tenant_id = b.tenant_id and c.reason = b.reason
where coalesce(b.count, 0) <> coalesce(c.count, 0)
order by 1, 2
limit 1000
