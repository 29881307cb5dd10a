-- Locks these batches; other sweepers skip locked rows. Primary key.
select b.tenant_id as "tenant_id!", b.id as "id!", b.month as "month!", b.lane as "lane!: Lane",
       b.kind as "kind!: MessageKind", b.classification as "classification!: Classification",
       exists (select from fallback_connections p where p.tenant_id = b.tenant_id) as "has_fallback!"
from unnest($1::uuid[], $2::uuid[]) as u (tenant_id, id)
join batches b on b.tenant_id = u.tenant_id and b.id = u.id
order by b.tenant_id, b.id
for no key update of b skip locked
