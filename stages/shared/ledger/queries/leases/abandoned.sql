-- Batches with fenced sends that wait for nothing: of the sessions between $1 and $2, from which no more writes can come, if the send is
-- not tried again ($3 and $4: such kinds and classifications). Served by batches_open and the primary key of sends.
select b.tenant_id as "tenant_id!", b.id as "id!"
from batches b
where b.lane in ('priority', 'bulk') and b.state in ('timed', 'waiting', 'announced', 'resting') and b.fenced > 0
  and exists (
      select from (
          select s.fence_token, s.doubtful
          from sends s
          where s.tenant_id = b.tenant_id and s.month = b.month and s.state = 'fenced'
            and s.id between b.id and last_id_of(b.id)
          offset 0
      ) s
      join unnest($1::uuid[], $2::uuid[]) as g (first, last) on s.fence_token between g.first and g.last
      where s.doubtful > 0 or (b.kind, b.classification) in (select * from unnest($3::text[], $4::text[])))
limit 64
