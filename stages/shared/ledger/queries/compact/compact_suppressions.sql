-- Folds the log of suppressions into the totals: how many there are, and how many came in which hour. Readers add totals and
-- log, and see both sides of this statement at once. $1 how many rows of the log at most. Answers how many were folded.
with taken as (
    delete from suppression_changes c
    where c.ctid in (select ctid from suppression_changes order by tenant_id limit $1 for update skip locked)
    returning c.tenant_id, c.hour, c.reason, c.added, c.removed
), totals as (
    insert into suppression_totals as t (tenant_id, reason, count)
    select tenant_id, reason, sum(added - removed) from taken group by tenant_id, reason order by tenant_id, reason
    on conflict (tenant_id, reason) do update set count = t.count + excluded.count
), hours as (
    insert into rollups as r (tenant_id, hour, kind, event, shard, count)
    select tenant_id, hour, 'suppression', reason, 0, sum(added) from taken
    group by tenant_id, hour, reason having sum(added) <> 0 order by tenant_id, hour, reason
    on conflict (tenant_id, hour, kind, event, shard) do update set count = r.count + excluded.count
)
select count(*) as "folded!" from taken
