-- Reduced rates in force that processes published within $1 seconds (null: all), at most $2, the newest first. Served by paces_by_age.
select tenant_id as "tenant_id!", sending_domain as "sending_domain!", receiver as "receiver!", rate as "rate!", threshold as "threshold!",
       extract(epoch from clock_timestamp() - cut_at)::float8 as "cut_age!",
       extract(epoch from clock_timestamp() - throttled_since)::float8 as "held_age!",
       extract(epoch from clock_timestamp() - good_at)::float8 as good_age
from live_paces
where updated_at > coalesce(now() - make_interval(secs => $1), '-infinity')
order by updated_at desc
limit $2
