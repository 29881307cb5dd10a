-- Adds to the totals of hours. $1 tenants, $2 batches, whose kind the total belongs to, $3 events, $4 hours, $5 by how much,
-- $6 shard. In key order, so that two processes cannot deadlock.
insert into rollups as r (tenant_id, hour, kind, event, shard, count)
select d.tenant_id, d.hour, b.kind, d.event, $6, sum(d.count)
from unnest($1::uuid[], $2::uuid[], $3::text[], $4::timestamptz[], $5::bigint[]) as d (tenant_id, batch_id, event, hour, count)
join batches b on b.tenant_id = d.tenant_id and b.id = d.batch_id and b.kind <> 'test'
group by d.tenant_id, d.hour, b.kind, d.event
having sum(d.count) <> 0
order by d.tenant_id, d.hour, b.kind, d.event
on conflict (tenant_id, hour, kind, event, shard) do update set count = r.count + excluded.count
