-- The traces of these batches: a batch's own trace, or else that of its launch. $1 tenants, $2 batches.
-- Nearly always nothing is traced, and nothing is read. Primary keys.
select w.tenant_id as "tenant_id!", w.id as "id!", t.traceparent, t.tracestate, t.is_own as "is_own!"
from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
cross join lateral (
    select b.campaign_id from batches b where b.tenant_id = w.tenant_id and b.id = w.id offset 0
) b
cross join lateral (
    select k.traceparent, k.tracestate, k.work_id = w.id as is_own
    from traces k
    where k.tenant_id = w.tenant_id and k.work_id in (w.id, b.campaign_id)
    order by is_own desc
    limit 1
) t
where exists (select from traces)
