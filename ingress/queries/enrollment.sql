-- One enrollment as callers see it. $1 tenant, $2 enrollment. By primary keys.
select e.id, e.sequence_id, e.version, e.contact_id, c.address as "email?",
       case
           when e.status in ('active', 'paused') then case s.status when 'archived' then 'exited' when 'active' then 'active' else 'paused' end
           else e.status
       end as "status!: EnrollmentStatus",
       case when e.status in ('active', 'paused') and s.status = 'archived' then 'sequence_archived' else e.exit_reason end
           as "exit_reason: ExitReason",
       case when e.status in ('active', 'paused') and s.status <> 'archived' then e.next_step end as next_step,
       case when s.status <> 'archived' then e.next_action_at end as next_action_at,
       case when e.status in ('active', 'paused') and s.status <> 'archived' then e.held_by end as held_by, e.attempts, e.last_error, e.ended_at,
       e.created_at, e.updated_at
from enrollments e
join sequences s on s.tenant_id = e.tenant_id and s.id = e.sequence_id
left join contacts c on c.tenant_id = e.tenant_id and c.id = e.contact_id and c.status <> 'erased'
where e.tenant_id = $1 and e.id = $2
