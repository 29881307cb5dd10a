-- Totals of a window by day of a time zone, kind and event. $1 tenant, $2 from, $3 to, $4 time zone. A range of the key. What the log of
-- suppressions still holds is added here: another statement could read it after it is folded into totals that were read before.
select (hour at time zone $4::text)::date as "day!", kind as "kind!", event as "event!", sum(count)::bigint as "count!"
from (
    select hour, kind, event, count from rollups where tenant_id = $1 and hour >= $2 and hour < $3
    union all
    select hour, 'suppression', reason, added from suppression_changes where tenant_id = $1 and hour >= $2 and hour < $3
) t
group by 1, kind, event
having sum(count) <> 0
