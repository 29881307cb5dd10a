-- Contacts that were created. $1 tenants, $2 ids. Primary key. A contact that was erased since is left out, and so is one
-- that a test of a campaign made: a test makes no events.
select w.tenant_id as "tenant_id!", w.id as "id!", c.address as "address!", c.first_name as "first_name?",
       c.last_name as "last_name?", c.source as "source?", c.created_at as "created_at!"
from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
join contacts c on c.tenant_id = w.tenant_id and c.id = w.id and c.status <> 'erased' and not is_made_by_test(c.source)
