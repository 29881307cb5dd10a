-- True for one process at a time, and only while batches wait: that process may dispatch. Then also: how many sends are in flight of all
-- tenants without a provider connection of their own, and whether an isolated tenant, one with such a connection, has capacity left. $1:
-- most sends in flight of each isolated tenant. Served by `batches_open`.
with ours as materialized (
    select exists (select from batches where lane = 'bulk' and state = 'waiting')
           and pg_try_advisory_xact_lock(hashtext('postrider dispatch')) as ours
), isolated as materialized (
    select distinct c.tenant_id from provider_connections c, ours o
    where o.ours and (c.is_default or c.fallback_rank is not null) and c.status = 'active'
)
select case when o.ours then (
           select coalesce(sum(b.queued + b.fenced), 0)::bigint
           from batches b
           where b.lane = 'bulk' and b.state = 'announced' and b.tenant_id not in (select a.tenant_id from isolated a)) end as in_flight,
       exists (
           select from isolated a
           where exists (select from batches b where b.lane = 'bulk' and b.state = 'waiting' and b.tenant_id = a.tenant_id)
             and (select coalesce(sum(b.queued + b.fenced), 0)
                  from batches b where b.lane = 'bulk' and b.state = 'announced' and b.tenant_id = a.tenant_id) < $1) as "isolated!"
from ours o
