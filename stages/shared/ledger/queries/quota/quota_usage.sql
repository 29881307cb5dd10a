-- Limits and usage of these tenants, one row each. Served by the primary keys; a month has at most 31 days of 17 shards.
select w.id as "tenant_id!", l.monthly as "monthly?", l.daily as "daily?", c.today as "today!",
       u.used_month as "used_month!", u.used_day as "used_day!"
from unnest($1::uuid[]) as w (id)
cross join (select (now() at time zone 'utc')::date as today) c
left join send_limits l on l.tenant_id = w.id
cross join lateral (
    select coalesce(sum(u.used), 0)::int8 as used_month,
           coalesce(sum(u.used) filter (where u.day = c.today), 0)::int8 as used_day
    from send_usage u
    where u.tenant_id = w.id and u.day >= date_trunc('month', c.today::timestamp)
      and u.day < date_trunc('month', c.today::timestamp) + interval '1 month'
) u
