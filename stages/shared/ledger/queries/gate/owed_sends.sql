-- The sends of batches that are queued, or deferred until now. $1 tenants, $2 first and $3 last ids of the batches, $4 months. One look-up by
-- the primary key for each batch: left to the planner, which takes any range for a large part of the table, some read all of it.
select s.tenant_id, s.id, s.contact_id
from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::date[]) as w (tenant_id, first, last, month)
cross join lateral (
    select s.tenant_id, s.id, s.contact_id from sends s
    where s.tenant_id = w.tenant_id and s.id between w.first and w.last and s.month = w.month
      and (s.state = 'queued' or (s.state = 'deferred' and s.next_attempt_at <= now()))
    offset 0
) s
order by s.tenant_id, s.id
