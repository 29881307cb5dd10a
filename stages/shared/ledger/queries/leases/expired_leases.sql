-- Batches in the states $1 with sends whose lease has expired, those of the priority lane first. Served by batches_open, a range for
-- each lane and state; other sweepers skip locked rows, so the order in which they are locked does not matter.
select b.tenant_id as "tenant_id!", b.id as "id!", b.month as "month!", b.lane as "lane!: Lane",
       b.kind as "kind!: MessageKind", b.classification as "classification!: Classification",
       exists (select from fallback_connections p where p.tenant_id = b.tenant_id) as "has_fallback!"
from (
    select l.lane, s.state from unnest(array['priority', 'bulk']) l (lane) cross join unnest($1::text[]) s (state)
    order by l.lane desc, s.state offset 0
) r
cross join lateral (
    select b.tenant_id, b.id, b.month, b.lane, b.kind, b.classification from batches b
    where b.lane = r.lane and b.state = r.state and b.state <> 'done' and b.lease_until < now() and b.fenced > 0
    for no key update of b skip locked
) b
limit 64
