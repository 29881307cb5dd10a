-- The gate: a cancel, a pause or a suspension that was committed is seen by every fence that is committed later.
--
-- A fence holds its tenant's gate, shared, from before it looks at campaign, tenant, domain and sender until it is committed. Whatever
-- stops sending closes the gate, which waits for the fences that have looked, and keeps it closed until it is committed. Advisory locks
-- and not locks of the rows: those that share a row lock pass whoever waits to change the row, so that under load he would wait for
-- long. A fence only tries: behind a closed gate it is asked again, and other tenants' mail does not wait.
--
-- There are 64 gates: a group of fences holds no more locks than that, and two tenants that share one wait for each other a moment.
create function gate_of(of_tenant uuid) returns integer
language sql immutable parallel safe
as $$ select uuid_hash(of_tenant) & 63 $$;

create function try_gate(of_tenant uuid) returns boolean
language sql volatile
as $$ select pg_try_advisory_xact_lock_shared(hashtext('postrider gate'), gate_of(of_tenant)) $$;

-- To be called before the tenant's own row is locked: a fence that holds the gate may wait for that row, where the tenant has a quota.
create function close_gate(of_tenant uuid) returns void
language sql volatile
as $$ select pg_advisory_xact_lock(hashtext('postrider gate'), gate_of(of_tenant)) $$;

-- By trigger, so that nothing that stops sending can forget it.
create function close_gate_of_row() returns trigger
language plpgsql
as $$
begin
    if tg_table_name = 'tenants' then
        perform close_gate(new.id);
    else
        perform close_gate(new.tenant_id);
    end if;
    return new;
end $$;
create trigger campaigns_close_gate before update of status, paused on campaigns
    for each row when (new.status = 'cancelled' and old.status <> 'cancelled' or new.paused and not old.paused)
    execute function close_gate_of_row();
create trigger tenants_close_gate before update of status, paused_at on tenants
    for each row when (new.status <> 'active' and old.status = 'active' or new.paused_at is not null and old.paused_at is null)
    execute function close_gate_of_row();
create trigger domains_close_gate before update of status on domains
    for each row when (new.status not in ('verified', 'degraded') and old.status in ('verified', 'degraded'))
    execute function close_gate_of_row();
create trigger senders_close_gate before update of status, domain_id on senders
    for each row when (new.status <> 'active' and old.status = 'active' or new.domain_id <> old.domain_id)
    execute function close_gate_of_row();
