-- Adds to the send usage of tenants. A day that is null is today. In key order, as everywhere in the ledger.
insert into send_usage as s (tenant_id, day, shard, used)
select u.tenant_id, coalesce(u.day, (now() at time zone 'utc')::date) as day, u.shard, sum(u.used)::int8
from unnest($1::uuid[], $2::date[], $3::int2[], $4::int8[]) as u (tenant_id, day, shard, used)
group by 1, 2, 3
order by 1, 2, 3
on conflict (tenant_id, day, shard) do update set used = s.used + excluded.used
