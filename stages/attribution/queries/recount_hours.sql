-- Outcome totals of hours that differ from a recount of outcomes and credits. $1 a tenant, or null for all. What an outcome is
-- booked as stands on its row: what was told since its last look is not booked yet.
with booked as (
    select tenant_id, hour, kind, outcome_type, outcomes, share, premium, value_cents from outcome_hours
    where $1::uuid is null or tenant_id = $1
), counted as (
    select o.tenant_id, o.booked_hour as hour, 'recorded' as kind, o.booked_type as outcome_type, count(*) as outcomes,
           count(*) * 1000000 as share, sum(o.booked_premium) as premium, sum(o.booked_value_cents) as value_cents
    from outcomes o
    where o.booked_type is not null and ($1::uuid is null or o.tenant_id = $1)
    group by 1, 2, 4
    union all
    select c.tenant_id, o.booked_hour, c.kind, o.booked_type, count(distinct c.outcome_id), sum(c.share),
           sum(coalesce(c.premium, 0)), sum(coalesce(c.value_cents, 0))
    from outcome_credits c
    join outcomes o on o.tenant_id = c.tenant_id and o.id = c.outcome_id
    where $1::uuid is null or c.tenant_id = $1
    group by 1, 2, 3, 4
)
select coalesce(b.tenant_id, c.tenant_id) as "tenant_id!",
       'outcomes ' || coalesce(b.kind, c.kind) || to_char(coalesce(b.hour, c.hour) at time zone 'UTC', ' YYYY-MM-DD"T"HH24":00Z"') as "of!",
       coalesce(b.outcome_type, c.outcome_type) || ' ' || v.counter as "counter!", v.booked::bigint as "stored!",
       v.counted::bigint as "recounted!"
from booked b
full join counted c on c.tenant_id = b.tenant_id and c.hour = b.hour and c.kind = b.kind and c.outcome_type = b.outcome_type
cross join lateral (values
    ('outcomes', coalesce(b.outcomes, 0), coalesce(c.outcomes, 0)), ('share', coalesce(b.share, 0), coalesce(c.share, 0)),
    ('premium', coalesce(b.premium, 0), coalesce(c.premium, 0)),
    ('value_cents', coalesce(b.value_cents, 0), coalesce(c.value_cents, 0))
) as v (counter, booked, counted)
where v.booked <> v.counted
order by 1, 2, 3
limit 1000
