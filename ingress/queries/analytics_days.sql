-- Totals of a window by day of a time zone, kind and event. $1 tenant, $2 from, $3 to, $4 time zone. A range of the key.
select (hour at time zone $4::text)::date as "day!", kind, event, sum(count)::bigint as "count!"
from rollups
where tenant_id = $1 and hour >= $2 and hour < $3
group by 1, kind, event
having sum(count) <> 0
