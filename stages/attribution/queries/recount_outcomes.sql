-- Outcomes whose credits do not add up to them. $1 a tenant, or null for all.
select o.tenant_id as "tenant_id!", 'outcome ' || o.id as "of!", v.counter as "counter!", v.booked as "stored!", v.counted::bigint as "recounted!"
from outcomes o
join (
    select c.tenant_id, c.outcome_id, sum(c.share) as share, sum(coalesce(c.premium, 0)) as premium,
           sum(coalesce(c.value_cents, 0)) as value_cents
    from outcome_credits c
    where $1::uuid is null or c.tenant_id = $1
    group by 1, 2
) c on c.tenant_id = o.tenant_id and c.outcome_id = o.id
cross join lateral (values
    ('share', 1000000::bigint, c.share), ('premium', coalesce(o.booked_premium, 0), c.premium),
    ('value_cents', coalesce(o.booked_value_cents, 0), c.value_cents)
) as v (counter, booked, counted)
where v.booked <> v.counted
order by 1, 2, 3
limit 1000
