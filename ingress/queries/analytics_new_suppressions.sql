-- How many suppressions came within a window, by reason, that are not in the totals of hours yet. $1 tenant, $2 from, $3 to.
select reason as "reason!", sum(added)::bigint as "count!"
from suppression_changes
where tenant_id = $1 and hour >= $2 and hour < $3
group by reason
having sum(added) > 0
