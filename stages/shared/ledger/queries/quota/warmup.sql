-- The warm-ups of these domains. From key to key (`offset 0`); a domain has as many rows of use as days on which it has sent.
select w.tenant_id as "tenant_id!", w.domain_id as "domain_id!", w.is_on as "is_on!", w.caps,
       u.days_before as "days_before!", u.used as "used!", (now() at time zone 'utc')::date as "today!"
from unnest($1::uuid[], $2::uuid[]) as d (tenant_id, id)
cross join lateral (
    select w.tenant_id, w.domain_id, w.is_on, w.caps
    from domain_warmups w where w.tenant_id = d.tenant_id and w.domain_id = d.id offset 0
) w
cross join lateral (
    select count(*) filter (where u.day < (now() at time zone 'utc')::date and u.used > 0) as days_before,
           coalesce(sum(u.used) filter (where u.day = (now() at time zone 'utc')::date), 0)::int8 as used
    from warmup_usage u where u.tenant_id = d.tenant_id and u.domain_id = d.id
) u
