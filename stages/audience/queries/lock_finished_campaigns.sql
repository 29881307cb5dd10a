-- Locks at most $1 campaigns without open batches. A cancelled campaign that is not materialised never will be: the launch checks the
-- status under the campaign's lock. Its open batches are found by the range of their ids in `batches_open`, state by state: those that are
-- done are not read. As ranges of rows, which no other index has: by the primary key Postgres would read the done ones as well.
select c.tenant_id, c.id
from campaigns c
where (c.status = 'sending' and c.materialized_at is not null or c.status = 'cancelled')
  and c.completed_at is null
  and not exists (
      select from unnest(array['held', 'timed', 'waiting', 'announced', 'resting']) as s (state)
      cross join lateral (
          select from batches b
          where b.state <> 'done'
            and (b.lane, b.state, b.tenant_id, b.id) >= ('bulk', s.state, c.tenant_id, first_id_of_launch(c.launch_prefix))
            and (b.lane, b.state, b.tenant_id, b.id) <= ('bulk', s.state, c.tenant_id, last_id_of_launch(c.launch_prefix))
          order by b.lane, b.state, b.tenant_id, b.id
          limit 1
      ) b
      offset 0)
order by c.tenant_id, c.id
limit $1
for update of c skip locked
