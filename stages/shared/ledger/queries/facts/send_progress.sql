-- The progress of the sends that signals name; sends that do not exist are left out: when each was accepted, by the server's answer or,
-- without one, by its fence; whether its outcome is unknown (a provider may have evidence); whether it is open; and whether its contact is
-- erased. An answer may be recorded long after it came, but mail leaves within seconds of its fence; a scanner that clicks while a slow
-- server has not answered for 30 seconds counts as a person. $1 tenants, $2 sends, $3 months.
-- Served by the primary keys, one by one (`offset 0`: without statistics the planner compares all with all); the batches are locked.
select w.tenant_id as "tenant_id!", w.id as "id!", s.accepted_at, s.is_doubted as "is_doubted!", s.is_open as "is_open!",
       (select c.status = 'erased' from contacts c where c.tenant_id = w.tenant_id and c.id = s.contact_id) is true as "is_erased!"
from unnest($1::uuid[], $2::uuid[], $3::date[]) as w (tenant_id, id, month)
cross join lateral (
    select s.contact_id,
           case when s.state = 'sent' then least(s.decided_at, s.fenced_at + interval '30 seconds') else s.fenced_at end as accepted_at,
           s.state = 'unknown' or s.state in ('queued', 'deferred') and s.doubtful > 0 as is_doubted,
           s.state in ('queued', 'fenced', 'deferred') as is_open
    from sends s
    where s.tenant_id = w.tenant_id and s.id = w.id and s.month = w.month
    offset 0
) s
