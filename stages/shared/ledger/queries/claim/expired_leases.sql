-- Batches with sends whose holder did not come back in time. Served by batches_open; other sweepers skip what is locked.
select b.tenant_id as "tenant_id!", b.id as "id!", b.month as "month!", b.kind as "kind!: MessageKind",
       b.classification as "classification!: Classification"
from batches b
where b.state <> 'done' and b.lease_until < now() and b.claimed + b.fenced > 0
order by b.tenant_id, b.id
limit 64
for no key update of b skip locked
