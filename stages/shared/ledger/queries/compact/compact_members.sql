-- Folds the log of members into the totals of audiences. $1 how many rows of the log at most. Answers how many were folded.
with taken as (
    delete from audience_member_changes c
    where c.ctid in (select ctid from audience_member_changes order by tenant_id, audience_id limit $1 for update skip locked)
    returning c.tenant_id, c.audience_id, c.change
), totals as (
    insert into audience_member_totals as t (tenant_id, audience_id, count)
    select tenant_id, audience_id, sum(change) from taken group by tenant_id, audience_id order by tenant_id, audience_id
    on conflict (tenant_id, audience_id) do update set count = t.count + excluded.count
)
select count(*) as "folded!" from taken
