-- Outcome totals of campaigns that differ from a recount of credits. $1 a tenant, or null for all.
with booked as (
    select tenant_id, campaign_id, outcome_type, outcomes, share, premium, value_cents from campaign_outcomes
    where $1::uuid is null or tenant_id = $1
), counted as (
    select c.tenant_id, c.campaign_id, o.booked_type as outcome_type, count(distinct c.outcome_id) as outcomes, sum(c.share) as share,
           sum(coalesce(c.premium, 0)) as premium, sum(coalesce(c.value_cents, 0)) as value_cents
    from outcome_credits c
    join outcomes o on o.tenant_id = c.tenant_id and o.id = c.outcome_id
    where c.campaign_id is not null and ($1::uuid is null or c.tenant_id = $1)
    group by 1, 2, 3
)
select coalesce(b.tenant_id, c.tenant_id) as "tenant_id!", 'campaign ' || coalesce(b.campaign_id, c.campaign_id) as "of!",
       coalesce(b.outcome_type, c.outcome_type) || ' ' || v.counter as "counter!", v.booked::bigint as "stored!",
       v.counted::bigint as "recounted!"
from booked b
full join counted c on c.tenant_id = b.tenant_id and c.campaign_id = b.campaign_id and c.outcome_type = b.outcome_type
cross join lateral (values
    ('outcomes', coalesce(b.outcomes, 0), coalesce(c.outcomes, 0)), ('share', coalesce(b.share, 0), coalesce(c.share, 0)),
    ('premium', coalesce(b.premium, 0), coalesce(c.premium, 0)),
    ('value_cents', coalesce(b.value_cents, 0), coalesce(c.value_cents, 0))
) as v (counter, booked, counted)
where v.booked <> v.counted
order by 1, 2, 3
limit 1000
