-- Batches with sends of sessions that are gone and that wait for nothing: claims of the sessions between $1 and $2, and fences of those
-- sessions from which no more writes can come ($3), if the send is not tried again ($4 and $5: such kinds and classifications).
-- Served by batches_open and the primary key of sends.
select b.tenant_id as "tenant_id!", b.id as "id!"
from batches b
where b.lane in ('priority', 'bulk') and b.state in ('waiting', 'announced', 'resting') and b.claimed + b.fenced > 0
  and exists (
      select from (
          select s.state, s.claim_token, s.doubtful
          from sends s
          where s.tenant_id = b.tenant_id and s.month = b.month and s.state in ('claimed', 'fenced')
            and s.id between b.id and (left(b.id::text, 33) || lpad(to_hex(('x' || right(b.id::text, 3))::bit(12)::integer | 511), 3, '0'))::uuid
          offset 0
      ) s
      join unnest($1::uuid[], $2::uuid[], $3::bool[]) as g (first, last, is_over) on s.claim_token between g.first and g.last
      where s.state = 'claimed'
         or g.is_over and (s.doubtful > 0 or (b.kind, b.classification) in (select * from unnest($4::text[], $5::text[]))))
limit 64
