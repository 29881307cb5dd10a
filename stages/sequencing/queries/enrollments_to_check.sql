-- The next live enrollments of contacts, at most $5 of each, locked in key order. $1 tenants, $2 contacts, $3 and $4 the last ones that were
-- checked. By `enrollments_by_contact`, read backwards. One that ended, or went to another contact, while its lock was waited for counts all
-- the same: by their number the caller knows whether there are more.
select e.tenant_id, e.id, e.sequence_id, w.contact_id as "contact_id!", e.opted_out_by_step, e.event_id, e.started_at, e.created_at,
       e.status in ('active', 'paused') and e.contact_id = w.contact_id as "is_live!"
from unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::uuid[]) as w (tenant_id, contact_id, reached_at, reached_id)
cross join lateral (
    select n.id from enrollments n
    where n.tenant_id = w.tenant_id and n.contact_id = w.contact_id and n.status in ('active', 'paused')
      and (n.created_at, n.id) > (w.reached_at, w.reached_id)
    order by n.created_at, n.id
    limit $5
) n
join enrollments e on e.tenant_id = w.tenant_id and e.id = n.id
order by e.tenant_id, e.id
for no key update of e
