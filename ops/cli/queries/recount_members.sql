-- Totals of audiences that differ from a count of their members. $1 a tenant, or null for all.
with booked as (
    select tenant_id, audience_id, sum(count) as count
    from (select tenant_id, audience_id, count from audience_member_totals
          union all
          select tenant_id, audience_id, change from audience_member_changes) t
    where $1::uuid is null or tenant_id = $1
    group by 1, 2
), counted as (
    select tenant_id, audience_id, count(*) as count from audience_members where $1::uuid is null or tenant_id = $1 group by 1, 2
)
select coalesce(b.tenant_id, c.tenant_id) as "tenant_id!", 'members' as "counter!",
       coalesce(b.audience_id, c.audience_id)::text as "of!", coalesce(b.count, 0)::bigint as "stored!",
       coalesce(c.count, 0)::bigint as "recounted!"
from booked b
full join counted c on c.tenant_id = b.tenant_id and c.audience_id = b.audience_id
where coalesce(b.count, 0) <> coalesce(c.count, 0)
order by 1, 3
limit 1000
