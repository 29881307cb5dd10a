-- Whether batches wait and we are the one process that may hand them on now; if so, how many sends are in flight of all tenants without
-- a connection of their own, and whether one with such a connection has room. $1 sends in flight of each of those. `batches_open`.
with ours as materialized (
    select exists (select from batches where lane = 'bulk' and state = 'waiting')
           and pg_try_advisory_xact_lock(hashtext('postrider hand_on')) as ours
), apart as materialized (
    select c.tenant_id from provider_connections c, ours o where o.ours and c.is_default and c.status = 'active'
)
select case when o.ours then (
           select coalesce(sum(b.queued + b.claimed + b.fenced), 0)::bigint
           from batches b
           where b.lane = 'bulk' and b.state = 'announced' and b.tenant_id not in (select a.tenant_id from apart a)) end as in_flight,
       exists (
           select from apart a
           where exists (select from batches b where b.lane = 'bulk' and b.state = 'waiting' and b.tenant_id = a.tenant_id)
             and (select coalesce(sum(b.queued + b.claimed + b.fenced), 0)
                  from batches b where b.lane = 'bulk' and b.state = 'announced' and b.tenant_id = a.tenant_id) < $1) as "apart!"
from ours o
