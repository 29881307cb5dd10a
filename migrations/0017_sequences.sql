-- Sequences: steps in a row, contacts that go through them, and what each step did.

create table sequences (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    product text not null,
    environment text not null,
    name text not null,
    description text,
    sender_profile_id uuid,
    trigger_type text not null default 'manual_enrollment',
    exit_on_unsubscribe boolean not null default true,
    exit_on_bounce boolean not null default true,
    exit_on_complaint boolean not null default true,
    status text not null check (status in ('draft', 'active', 'paused', 'archived')),
    -- Set when a sequence is resumed or archived: its enrollments have yet to follow, which the sequencing stage sees to.
    -- Pausing needs nothing: who is due meanwhile is parked when he is found.
    settle_since timestamptz,
    activated_at timestamptz,
    archived_at timestamptz,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (tenant_id, id),
    foreign key (tenant_id, sender_profile_id) references senders (tenant_id, id)
);
create index sequences_newest on sequences (tenant_id, created_at desc, id desc);
create index sequences_to_settle on sequences (settle_since) where settle_since is not null;
select wall_off('sequences');

-- Never changed: an enrollment's cursor counts on it.
create table sequence_steps (
    tenant_id uuid not null,
    id uuid not null,
    sequence_id uuid not null,
    step_order smallint not null check (step_order between 1 and 50),
    step_type text not null check (step_type in (
        'send_email', 'wait', 'apply_tag', 'remove_tag', 'update_field', 'update_lifecycle_stage', 'notify_owner', 'create_task',
        'create_opportunity', 'end_sequence', 'update_subscription', 'add_suppression', 'call_product_webhook')),
    template_id uuid,
    delay_amount integer not null default 0 check (delay_amount >= 0),
    delay_unit text not null default 'minutes' check (delay_unit in ('minutes', 'hours', 'days', 'business_days')),
    action_config jsonb not null default '{}',
    primary key (tenant_id, id),
    unique (tenant_id, sequence_id, step_order),
    foreign key (tenant_id, sequence_id) references sequences (tenant_id, id),
    foreign key (tenant_id, template_id) references templates (tenant_id, id),
    constraint sequence_steps_mail_has_a_template check ((step_type = 'send_email') = (template_id is not null))
);
select wall_off('sequence_steps');

-- A contact on its way through a sequence. What callers see as `paused` is that of the sequence; here it says that the
-- enrollment came due meanwhile and was taken out of the due ones.
create table enrollments (
    tenant_id uuid not null,
    id uuid not null,
    sequence_id uuid not null,
    contact_id uuid not null,
    product text not null,                      -- who enrolled: tasks and opportunities are its
    status text not null default 'active' check (status in ('active', 'paused', 'completed', 'exited', 'failed')),
    exit_reason text,
    next_step smallint not null default 1,      -- the step_order to take next
    next_action_at timestamptz,                 -- when; null when it is over
    attempts smallint not null default 0,       -- at this step, so far without success
    last_error text,                            -- a code of ours
    claim_token uuid,                           -- while a call to a product is out: whose it is, until next_action_at
    -- Its own step suppressed or unsubscribed the contact: that does not end it.
    opted_out_by_step boolean not null default false,
    steps_today smallint not null default 0,    -- the loop guard's; goes over to the contact's next enrollment in the sequence
    steps_day date,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    ended_at timestamptz,
    primary key (tenant_id, id),
    foreign key (tenant_id, sequence_id) references sequences (tenant_id, id),
    foreign key (tenant_id, contact_id) references contacts (tenant_id, id),
    constraint enrollments_live_ones_are_due check ((status in ('active', 'paused')) = (next_action_at is not null))
) with (fillfactor = 80);
create unique index enrollments_one_live on enrollments (tenant_id, sequence_id, contact_id) where status in ('active', 'paused');
-- Due work: by time while it all fits into one go, by tenant in turn when it does not.
create index enrollments_due on enrollments (next_action_at) where status = 'active';
create index enrollments_due_by_tenant on enrollments (tenant_id, next_action_at) where status = 'active';
create index enrollments_parked on enrollments (tenant_id, sequence_id) where status = 'paused';
create index enrollments_newest on enrollments (tenant_id, created_at desc, id desc);
create index enrollments_by_sequence on enrollments (tenant_id, sequence_id, created_at desc, id desc);
create index enrollments_by_contact on enrollments (tenant_id, contact_id, created_at desc, id desc);
select wall_off('enrollments');

-- What each step did for an enrollment.
create table enrollment_steps (
    tenant_id uuid not null,
    enrollment_id uuid not null,
    step_order smallint not null,
    step_id uuid not null,
    step_type text not null,
    outcome text not null check (outcome in ('done', 'unchanged', 'withheld', 'failed')),
    detail jsonb not null default '{}',         -- ids and codes only
    send_id uuid,
    due_at timestamptz not null,
    done_at timestamptz not null default now(),
    primary key (tenant_id, enrollment_id, step_order)
);
select wall_off('enrollment_steps');

-- Which step a mail is of. Written with the send; the second key is what makes a step's mail one.
create table sequence_sends (
    tenant_id uuid not null,
    send_id uuid not null,
    sequence_id uuid not null,
    enrollment_id uuid not null,
    step_id uuid not null,
    primary key (tenant_id, send_id),
    unique (tenant_id, enrollment_id, step_id)
);
select wall_off('sequence_sends');

-- Whose enrollments may have to end, noted by whoever wrote the fact, by trigger: an opt-out, a bounce, a complaint, an archived
-- contact, an answer. A step looks for itself before it acts; this is for the time until the next step.
create table enrollment_checks (
    id bigint generated always as identity primary key,
    tenant_id uuid not null,
    contact_id uuid not null,
    replied_to uuid,                            -- the send that was answered
    noted_at timestamptz not null default clock_timestamp()
);
create index enrollment_checks_by_contact on enrollment_checks (tenant_id, contact_id);
grant select, insert, update, delete on enrollment_checks to postrider_stages;
grant insert on enrollment_checks to postrider_ingress;

-- Look-ups by key for each row, whatever the planner knows of these tables.
create function check_suppressed_enrollments() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    if not exists (select from enrollments e
                   where e.status in ('active', 'paused') and e.tenant_id = any (select distinct a.tenant_id from added a)) then
        return null;
    end if;
    insert into enrollment_checks (tenant_id, contact_id)
    select distinct a.tenant_id, c.id
    from added a
    cross join lateral (select c.id from contacts c where c.tenant_id = a.tenant_id and c.address = a.address offset 0) c
    cross join lateral (
        select from enrollments e
        where e.tenant_id = a.tenant_id and e.contact_id = c.id and e.status in ('active', 'paused') limit 1
    ) live;
    return null;
end $$;
create trigger suppressions_end_enrollments after insert on suppressions
    referencing new table as added for each statement execute function check_suppressed_enrollments();

create function check_left_enrollments() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    insert into enrollment_checks (tenant_id, contact_id)
    select new.tenant_id, new.id
    where exists (select from enrollments e
                  where e.tenant_id = new.tenant_id and e.contact_id = new.id and e.status in ('active', 'paused'));
    return null;
end $$;
create trigger contacts_end_enrollments after update of status, marketing_status on contacts
    for each row when ((new.status <> 'active' and old.status = 'active')
                       or (new.marketing_status = 'unsubscribed' and old.marketing_status <> 'unsubscribed'))
    execute function check_left_enrollments();

create function check_answered_enrollments() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    insert into enrollment_checks (tenant_id, contact_id, replied_to)
    select e.tenant_id, e.contact_id, new.send_id
    from sequence_sends s
    join enrollments e on e.tenant_id = s.tenant_id and e.id = s.enrollment_id
    where s.tenant_id = new.tenant_id and s.send_id = new.send_id;
    return null;
end $$;
create trigger events_end_enrollments after insert on events
    for each row when (new.type = 'replied') execute function check_answered_enrollments();
