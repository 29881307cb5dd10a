-- A subscription's deliveries, newest first. $1 tenant, $2 subscription, $3 status or null, $4 type or null, $5 and $6 the last of the
-- page before or null, $7 how many. Each branch is one way to find them; the others end before they begin.
--
-- Dead ones stand in `webhook_dead`. Those that wait are found by the queue while they are no more than a thousand; of more than that
-- the newest are not far. All others, and all together: `webhook_deliveries_newest`, and those of a type `webhook_deliveries_by_type`.
with waiting as materialized (
    select w.id from waiting_deliveries($1, $2, case when $3 = 'pending' then 1001 else 0 end) as w (id)
), few as materialized (
    select $3 = 'pending' and count(*) <= 1000 as they_are from waiting
), found as (
    (select d.*
     from webhook_dead k
     cross join lateral (
         select d.* from webhook_deliveries d where d.tenant_id = k.tenant_id and d.id = k.delivery_id and d.status = 'dead' offset 0
     ) d
     where $3 = 'dead' and k.tenant_id = $1 and k.subscription_id = $2
       and (k.created_at, k.delivery_id) < (coalesce($5, 'infinity'::timestamptz), coalesce($6, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid))
       and ($4::text is null or d.type = $4)
     order by k.created_at desc, k.delivery_id desc
     limit $7)
    union all
    (select d.*
     from waiting w
     cross join lateral (
         select d.* from webhook_deliveries d where d.tenant_id = $1 and d.id = w.id and d.status = 'pending' offset 0
     ) d
     where (select they_are from few)
       and (d.created_at, d.id) < (coalesce($5, 'infinity'::timestamptz), coalesce($6, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid))
       and ($4::text is null or d.type = $4)
     order by d.created_at desc, d.id desc
     limit $7)
    union all
    (select d.*
     from webhook_deliveries d
     where $4::text is null and ($3 is null or $3 = 'delivered' or $3 = 'pending' and not (select they_are from few))
       and d.tenant_id = $1 and d.subscription_id = $2
       and (d.created_at, d.id) < (coalesce($5, 'infinity'::timestamptz), coalesce($6, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid))
       and ($3::text is null or d.status = $3)
     order by d.created_at desc, d.id desc
     limit $7)
    union all
    (select d.*
     from webhook_deliveries d
     where $4 is not null and ($3 is null or $3 = 'delivered' or $3 = 'pending' and not (select they_are from few))
       and d.tenant_id = $1 and d.subscription_id = $2 and d.type = $4
       and (d.created_at, d.id) < (coalesce($5, 'infinity'::timestamptz), coalesce($6, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid))
       and ($3::text is null or d.status = $3)
     order by d.created_at desc, d.id desc
     limit $7)
)
select id as "id!", subscription_id as "subscription_id!", event_id as "event_id!", type as "event!", status as "status!: DeliveryStatus",
       attempts as "attempts!", next_attempt_at, attempted_at, status_code, error_code, duration_ms, delivered_at,
       replayed as "replayed!", created_at as "created_at!"
from found
order by created_at desc, id desc
limit $7
