-- Reduced rates that processes published within $1 seconds, at most $2, the newest first. Served by paces_by_age.
select tenant_id, sending_domain, receiver, rate, threshold,
       extract(epoch from clock_timestamp() - cut_at)::float8 as "cut_age!",
       extract(epoch from clock_timestamp() - throttled_since)::float8 as "held_age!",
       extract(epoch from clock_timestamp() - good_at)::float8 as good_age
from paces
where updated_at > clock_timestamp() - make_interval(secs => $1)
order by updated_at desc
limit $2
