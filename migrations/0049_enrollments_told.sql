-- How an enrollment ends is told by whoever ends it: in one place, in the transaction that does it. After the last step and after an
-- `end_sequence` step the sequence is completed; every other end before the last step is an exit, and a step that cannot be taken a
-- failure. One event an enrollment.
create function notice_ended_enrollments() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    insert into notices (tenant_id, id, type, contact_id, subject_id, data)
    select n.tenant_id, gen_random_uuid(),
           case when n.status = 'failed' then 'enrollment.failed'
                when n.status = 'completed' or n.exit_reason = 'end_step' then 'sequence.completed'
                else 'enrollment.exited' end,
           n.contact_id, n.id,
           jsonb_build_object('sequence_id', n.sequence_id)
               || case when n.status = 'failed' then jsonb_build_object('step_order', n.next_step, 'error', n.last_error)
                       when n.status = 'completed' or n.exit_reason = 'end_step' then '{}'
                       else jsonb_build_object('exit_reason', n.exit_reason) end
    from ended n
    join live o on o.tenant_id = n.tenant_id and o.id = n.id
    where n.status in ('completed', 'exited', 'failed') and o.status in ('active', 'paused');
    return null;
end $$;
create trigger enrollments_ended after update on enrollments
    referencing old table as live new table as ended for each statement execute function notice_ended_enrollments();

-- Whether a tenant's sequence may write to an address as to the owner: the owner's own, or one on a domain that the tenant has proven.
create function is_owners_address(of_tenant uuid, asked text) returns boolean
language sql stable
as $$
    select exists (select from tenants t where t.id = of_tenant and lower(t.owner_email) = asked)
        or exists (select from tenant_links l where l.tenant_id = of_tenant and lower(l.owner_email) = asked)
        or exists (select from domains d
                   where d.tenant_id = of_tenant and d.domain = split_part(asked, '@', 2) and d.status in ('verified', 'degraded'))
$$;
