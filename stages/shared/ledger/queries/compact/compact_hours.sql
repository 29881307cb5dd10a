-- Moves the shards of past hours, to which only late opens and clicks are still added, to their first one. $1 how many rows at most.
-- Served by `rollups_shards`. Rows that a writer holds are left for the next run. Answers how many were moved.
with taken as (
    delete from rollups where ctid = any(array(
        select r.ctid from rollups r
        where r.shard <> 0 and r.hour < now() - interval '2 hours'
        order by r.hour limit $1
        for update skip locked))
    returning tenant_id, hour, kind, event, count
), merged as (
    insert into rollups as r (tenant_id, hour, kind, event, shard, count)
    select tenant_id, hour, kind, event, 0, sum(count) from taken
    group by tenant_id, hour, kind, event order by tenant_id, hour, kind, event
    on conflict (tenant_id, hour, kind, event, shard) do update set count = r.count + excluded.count
)
select count(*) as "saved!" from taken
