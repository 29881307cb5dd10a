-- The processes by stage. $1 seconds after which one is silent, $2 seconds after which a silent one is not talked about any
-- more. A setting counts when every living process of the stage was given it.
select h.stage,
       count(*) filter (where h.alive) as "alive!",
       count(*) filter (where not h.alive and h.seen_at > now() - make_interval(secs => $2::integer)) as "silent!",
       coalesce((select array_agg(distinct f) from heartbeats o cross join unnest(o.failing_sweeps) f
                 where o.stage = h.stage and o.seen_at > now() - make_interval(secs => $1::integer)), '{}') as "failing_sweeps!",
       coalesce((select array_agg(s order by s) from (
                     select s from heartbeats o cross join unnest(o.settings) s
                     where o.stage = h.stage and o.seen_at > now() - make_interval(secs => $1::integer)
                     group by s having
                         count(*) = (select count(*) from heartbeats p
                                         where p.stage = h.stage and p.seen_at > now() - make_interval(secs => $1::integer))) g), '{}') as "settings!"
from (select stage, seen_at, seen_at > now() - make_interval(secs => $1::integer) as alive from heartbeats) h
group by h.stage
order by h.stage
