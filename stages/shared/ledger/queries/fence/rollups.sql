-- Adds to the hour's totals. The shard keeps processes out of each other's way; keys come in order.
insert into rollups as r (tenant_id, hour, kind, event, shard, count)
select u.tenant_id, date_trunc('hour', now(), 'UTC'), u.kind, u.event, $5, u.count
from unnest($1::uuid[], $2::text[], $3::text[], $4::int8[]) as u (tenant_id, kind, event, count)
on conflict (tenant_id, hour, kind, event, shard) do update set count = r.count + excluded.count
