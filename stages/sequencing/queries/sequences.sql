-- The sequences of a group with their tenants. $1 tenants, $2 sequences, each pair once. By primary keys and `senders_one_default`.
select s.tenant_id, s.id, s.status as "status: SequenceStatus", s.name, s.sender_profile_id, s.exit_on_unsubscribe,
       s.exit_on_bounce, s.exit_on_complaint, s.exit_event as "exit_event: Json<ExitEvent>",
       (select d.id from senders d where d.tenant_id = s.tenant_id and d.is_default) as default_sender_id,
       t.status = 'active' and t.paused_at is null as "tenant_active!", t.timezone, t.owner_email,
       t.quiet_from, t.quiet_to, t.quiet_for,
       t.environment as "environment: Environment"
from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
join sequences s on s.tenant_id = w.tenant_id and s.id = w.id
join tenants t on t.id = s.tenant_id
