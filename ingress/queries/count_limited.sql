-- How many objects of a kind a tenant has, without what is removed or archived. $1 tenant, $2 the kind, $3 how many are counted at most. One
-- table is read: served by audiences_by_name, segments_by_name, sequences_unarchived, snippets_by_name, templates_unarchived.
select count(*) as "count!"
from (
    select 1 from audiences where tenant_id = $1 and kind = $2::text and deleted_at is null
    union all
    select 1 from segments where tenant_id = $1 and $2 = 'segment' and deleted_at is null
    union all
    select 1 from sequences where tenant_id = $1 and $2 = 'sequence' and status <> 'archived'
    union all
    select 1 from snippets where tenant_id = $1 and $2 = 'snippet' and deleted_at is null
    union all
    select 1 from templates where tenant_id = $1 and $2 = 'template' and status <> 'archived'
    limit $3
) t
