-- The next sends with opens or clicks. $1 tenant and $2 send of the last one read, $3 a tenant, or null for all, $4 the
-- smallest send id, $5 how many. A range of the key of contact_facts, which has such sends only.
select tenant_id, send_id
from contact_facts
where (tenant_id, send_id) > ($1::uuid, $2::uuid) and ($3::uuid is null or tenant_id = $3) and send_id >= $4
  and fact in ('opened', 'clicked')
group by tenant_id, send_id
order by tenant_id, send_id
limit $5
