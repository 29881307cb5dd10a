-- Batches with sends whose lease has expired. Served by batches_open; other sweepers skip locked rows.
select b.tenant_id as "tenant_id!", b.id as "id!", b.month as "month!", b.kind as "kind!: MessageKind",
       b.classification as "classification!: Classification",
       exists (select from fallback_connections p where p.tenant_id = b.tenant_id) as "has_fallback!"
from batches b
where b.state <> 'done' and b.lease_until < now() and b.fenced > 0
order by b.tenant_id, b.id
limit 64
for no key update of b skip locked
