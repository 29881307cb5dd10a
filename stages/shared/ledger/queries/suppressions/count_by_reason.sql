-- How many suppressions there are, by reason, from counters. $1 tenant. Those that have run out are counted one by one: they are
-- few (suppressions_that_expire). What the log still holds is added.
select reason as "reason!", sum(count)::bigint as "count!"
from (
    select reason, count from suppression_totals where tenant_id = $1
    union all
    select reason, added - removed from suppression_changes where tenant_id = $1
    union all
    select reason, -1 from suppressions where tenant_id = $1 and expires_at <= now()
) t
group by reason
having sum(count) > 0
order by reason
