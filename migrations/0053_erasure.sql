-- Erasures under way. What is erased at once is the contact's own row; what others wrote of the person is erased in slices by the
-- audience stage, which goes on after a restart where it was.
create table erasures (
    tenant_id uuid not null references tenants (id),
    contact_id uuid not null,
    address text,                               -- what is searched for; null once the search is over
    step text not null default 'requests',      -- `audience::erasure` has the steps, in order
    cursor_id uuid not null default '00000000-0000-0000-0000-000000000000',
    cursor_text text not null default '',
    due_at timestamptz not null default now(),
    asked_at timestamptz not null default now(),
    completed_at timestamptz,                   -- everything there was at the time is erased
    finished_at timestamptz,                    -- and so is what came in later about mail that was under way
    primary key (tenant_id, contact_id)
);
create index erasures_due on erasures (due_at) where finished_at is null;
select wall_off('erasures');
revoke update, delete on erasures from postrider_ingress;
