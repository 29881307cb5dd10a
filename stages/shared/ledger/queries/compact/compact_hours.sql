-- Merges the shards of past hours, to which only late opens and clicks are still added. $1 how many totals at
-- most. Served by rollups_by_hour. Answers how many rows were saved.
with past as (
    select tenant_id, hour, kind, event from rollups
    where hour between now() - interval '3 days' and now() - interval '2 hours'
    group by tenant_id, hour, kind, event having count(*) > 1
    order by tenant_id, hour, kind, event limit $1
), taken as (
    delete from rollups r using past p
    where r.tenant_id = p.tenant_id and r.hour = p.hour and r.kind = p.kind and r.event = p.event and r.shard <> 0
    returning r.tenant_id, r.hour, r.kind, r.event, r.count
), merged as (
    insert into rollups as r (tenant_id, hour, kind, event, shard, count)
    select tenant_id, hour, kind, event, 0, sum(count) from taken
    group by tenant_id, hour, kind, event order by tenant_id, hour, kind, event
    on conflict (tenant_id, hour, kind, event, shard) do update set count = r.count + excluded.count
)
select count(*) as "saved!" from taken
