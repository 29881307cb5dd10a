-- Due enrollments, at most $1, the longest due first, locked. Rows that another process has locked are skipped. Served by
-- `enrollments_due`.
select e.tenant_id, e.id, e.sequence_id, e.version, e.contact_id, e.product, e.next_step, e.next_action_at as "due_at!", e.attempts,
       e.opted_out_by_step
from enrollments e
where e.status = 'active' and e.next_action_at <= now()
order by e.next_action_at
limit $1
for no key update of e skip locked
