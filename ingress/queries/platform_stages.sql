-- The processes by stage. $1 seconds after which one is silent, $2 seconds after which a silent one is not talked about any
-- more. A setting counts when every living process of the stage was given it.
with processes as (
    select stage, seen_at, failing_sweeps, settings, seen_at > now() - make_interval(secs => $1::integer) as alive from heartbeats
)
select h.stage,
       count(*) filter (where h.alive) as "alive!",
       count(*) filter (where not h.alive and h.seen_at > now() - make_interval(secs => $2::integer)) as "silent!",
       coalesce((select array_agg(distinct f) from processes p cross join unnest(p.failing_sweeps) f
                 where p.stage = h.stage and p.alive), '{}') as "failing_sweeps!",
       coalesce((select array_agg(s.setting order by s.setting)
                 from (select setting, count(*) as given from processes p cross join unnest(p.settings) setting
                       where p.stage = h.stage and p.alive group by setting) s
                 where s.given = (select count(*) from processes p where p.stage = h.stage and p.alive)), '{}') as "settings!"
from processes h
group by h.stage
order by h.stage
