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
    -- A product event that ends enrollments: `event`, and `properties` it has among its own.
    exit_event jsonb,
    -- What starts the sequence by itself, in the terms of `trigger_type`. Null: nothing does, and `trigger_type` is a label.
    trigger_config jsonb,
    reentry text not null default 'once' check (reentry in ('once', 'after_finishing', 'every_time')),
    reentry_gap_minutes integer not null default 0 check (reentry_gap_minutes >= 0),
    -- When an occurrence starts the sequence; null: no bound.
    enroll_from timestamptz,
    enroll_until timestamptz,
    -- When occurrences that no writer notes were looked for last: null for a trigger that was not looked at. A look that fails is a try.
    triggers_swept_at timestamptz,
    triggers_tried_at timestamptz,
    status text not null check (status in ('draft', 'active', 'paused', 'archived')),
    -- Set when a sequence is resumed or archived, or its tenant is resumed: the sequencing stage has yet to change its enrollments.
    -- Pausing needs nothing, nor does suspending a tenant: an enrollment that comes due meanwhile is paused when it is found.
    unapplied_since timestamptz,
    version integer not null default 1,         -- the newest of its steps: what new enrollments go through
    activated_at timestamptz,
    archived_at timestamptz,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    deleted_at timestamptz,                     -- its enrollments and reports of the past keep their reference
    primary key (tenant_id, id),
    foreign key (tenant_id, sender_profile_id) references senders (tenant_id, id)
);
create index sequences_newest on sequences (tenant_id, created_at desc, id desc) where deleted_at is null;
create index sequences_unarchived on sequences (tenant_id) where status <> 'archived';    -- a tenant may have so many
-- The few that start by themselves.
create index sequences_triggered on sequences (tenant_id, trigger_type) where trigger_config is not null and status = 'active';
create index sequences_with_exit_events on sequences (tenant_id) where exit_event is not null;
create index sequences_unapplied on sequences (unapplied_since) where unapplied_since is not null;
select enable_row_security('sequences');
create trigger sequences_close_gate before update of status on sequences
    for each row when (new.status = 'archived' and old.status <> 'archived')
    execute function close_gate_of_row();

-- The sequences that an occurrence of this kind starts now.
create function sequences_started_by(of_tenant uuid, kind text) returns setof sequences
language sql stable
as $$
    select s.* from sequences s
    where s.tenant_id = of_tenant and s.trigger_type = kind and s.trigger_config is not null and s.status = 'active'
      and (s.enroll_from is null or s.enroll_from <= now()) and (s.enroll_until is null or s.enroll_until > now())
$$;
grant execute on function sequences_started_by(uuid, text) to postrider_ingress, postrider_stages;

-- The sequences that a segment starts, now or when they are resumed.
create function segment_triggers(of_tenant uuid) returns setof sequences
language sql stable
as $$
    select s.* from sequences s
    where s.tenant_id = of_tenant and s.trigger_type = 'segment_entered' and s.trigger_config is not null
      and s.status in ('active', 'paused')
$$;
grant execute on function segment_triggers(uuid) to postrider_ingress, postrider_stages;

-- Never changed: an enrollment's `next_step` counts on it. A change of the steps is a new version, beside the old ones.
create table sequence_steps (
    tenant_id uuid not null,
    id uuid not null,
    sequence_id uuid not null,
    version integer not null default 1 check (version > 0),
    step_order smallint not null check (step_order between 1 and 50),
    step_type text not null check (step_type in (
        'send_email', 'wait', 'apply_tag', 'remove_tag', 'update_field', 'update_lifecycle_stage', 'notify_owner', 'create_task',
        'create_opportunity', 'end_sequence', 'update_subscription', 'add_suppression', 'call_product_webhook')),
    template_id uuid,
    delay_amount integer not null default 0 check (delay_amount >= 0),
    delay_unit text not null default 'minutes' check (delay_unit in ('minutes', 'hours', 'days', 'business_days')),
    action_config jsonb not null default '{}',
    created_at timestamptz not null default now(),
    primary key (tenant_id, id),
    unique (tenant_id, sequence_id, version, step_order),
    foreign key (tenant_id, sequence_id) references sequences (tenant_id, id),
    foreign key (tenant_id, template_id) references templates (tenant_id, id),
    constraint sequence_steps_mail_has_a_template check ((step_type = 'send_email') = (template_id is not null))
);
select enable_row_security('sequence_steps');

-- How often the secret of a product's calls (`call_product_webhook`) was rotated. The secret itself is derived: from the master key,
-- the tenant, the product and this number. No row: never.
create table call_secrets (
    tenant_id uuid not null references tenants (id),
    product text not null,
    generation integer not null default 0 check (generation >= 0),
    rotated_at timestamptz not null default now(),
    primary key (tenant_id, product)
);
select enable_row_security('call_secrets');

-- Whether a tenant's sequence may write to an address as to the owner: the owner's own, or one on a domain that the tenant has proven.
create function is_owners_address(of_tenant uuid, asked text) returns boolean
language sql stable
as $$
    select exists (select from tenants t where t.id = of_tenant and lower(t.owner_email) = asked)
        or exists (select from tenant_links l where l.tenant_id = of_tenant and lower(l.owner_email) = asked)
        or exists (select from domains d
                   where d.tenant_id = of_tenant and d.domain = split_part(asked, '@', 2) and d.status in ('verified', 'degraded'))
$$;

-- Enrollments ----------------------------------------------------------------------------------------------------------------

-- A contact on its way through a sequence. What callers see as `paused` is the status of the sequence; here it says that the
-- enrollment came due meanwhile and was taken out of the due ones.
create table enrollments (
    tenant_id uuid not null,
    id uuid not null,
    sequence_id uuid not null,
    version integer not null,                   -- of the sequence's steps: it is finished as it was begun
    contact_id uuid not null,
    product text not null,                      -- the product that enrolled: tasks and opportunities are its own
    status text not null default 'active' check (status in ('active', 'paused', 'completed', 'exited', 'failed')),
    exit_reason text,
    next_step smallint not null default 1,      -- the step_order to take next
    next_action_at timestamptz,                 -- when; null when it is over
    attempts smallint not null default 0,       -- at this step, so far without success
    last_error text,                            -- a code of ours
    claim_token uuid,                           -- of the worker whose call to a product is out, until next_action_at
    -- What its due step waits for: it is looked at again at next_action_at, and a confirmed consent wakes it.
    held_by text check (held_by in ('frequency_cap', 'quiet_hours', 'no_consent', 'owner_mails')),
    -- Its own step suppressed or unsubscribed the contact: that does not end it.
    opted_out_by_step boolean not null default false,
    steps_today smallint not null default 0,    -- for the loop guard, which adds up a contact's enrollments in the sequence
    steps_day date,
    event_id uuid,                              -- the product event that started it
    started_at timestamptz not null default now(), -- when what started it was noted: an event that ends it came later
    is_parallel boolean not null default false, -- of a sequence that starts every time: beside others of the contact
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    ended_at timestamptz,
    primary key (tenant_id, id),
    foreign key (tenant_id, sequence_id) references sequences (tenant_id, id),
    foreign key (tenant_id, contact_id) references contacts (tenant_id, id),
    constraint enrollments_live_ones_are_due check ((status in ('active', 'paused')) = (next_action_at is not null))
) with (fillfactor = 80);
create unique index enrollments_one_live on enrollments (tenant_id, sequence_id, contact_id)
    where status in ('active', 'paused') and not is_parallel;
-- Due work: by time while it all fits into one run, by tenant in turn when it does not.
create index enrollments_due on enrollments (next_action_at) where status = 'active';
create index enrollments_due_by_tenant on enrollments (tenant_id, next_action_at) where status = 'active';
create index enrollments_paused on enrollments (tenant_id, sequence_id) where status = 'paused';
create index enrollments_newest on enrollments (tenant_id, created_at desc, id desc);
create index enrollments_by_sequence on enrollments (tenant_id, sequence_id, created_at desc, id desc);
create index enrollments_by_contact on enrollments (tenant_id, contact_id, created_at desc, id desc);
-- Enrollments of a sequence by how they ended. A row enters this index once.
create index enrollments_over on enrollments (tenant_id, sequence_id, status, created_at desc, id desc)
    where status in ('completed', 'exited', 'failed');
-- A row is written to this index with every step, as it is to `enrollments_due`: a list of the few that are live, among a million
-- that were, is worth that.
create index enrollments_live on enrollments (tenant_id, sequence_id, created_at desc, id desc)
    where status in ('active', 'paused');
select enable_row_security('enrollments');

-- A tenant that is resumed, or is no longer suspended: what of its sequences came due meanwhile goes on.
create function resume_enrollments_of_tenant() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    update sequences set unapplied_since = now(), updated_at = now() where tenant_id = new.id and status = 'active';
    return null;
end $$;
create trigger tenants_resume_enrollments after update of status, paused_at on tenants
    for each row when (new.status = 'active' and new.paused_at is null and (old.status <> 'active' or old.paused_at is not null))
    execute function resume_enrollments_of_tenant();

-- The status of an enrollment as callers see it: while it is live, as its sequence is.
create function shown_status(enrollment text, sequence text) returns text
language sql immutable parallel safe
as $$
    select case when enrollment in ('active', 'paused')
                then case sequence when 'archived' then 'exited' when 'active' then 'active' else 'paused' end
                else enrollment end
$$;
grant execute on function shown_status(text, text) to postrider_ingress, postrider_stages;

-- Whether an enrollment has ended early, also with its archived sequence, before that is written to it: its mail is not owed any more. An
-- `end_sequence` step and a step that cannot be taken are no early end.
create function has_ended_early(enrollment enrollments, sequence_status text, archived_at timestamptz) returns boolean
language sql stable parallel safe
as $$
    select shown_status(enrollment.status, sequence_status) = 'exited' and enrollment.exit_reason is distinct from 'end_step'
        -- Its last step was being taken when the sequence was archived: it is written seconds before its commit at most.
        or enrollment.status = 'completed' and sequence_status = 'archived'
           and coalesce(enrollment.ended_at > archived_at - interval '5 seconds', false)
$$;
grant execute on function has_ended_early(enrollments, text, timestamptz) to postrider_ingress, postrider_stages;

-- Whether a step waits for the consent that a contact is asked to confirm: the link is out, or was asked for in the last 14 days. A
-- tenant that cannot send the mail holds nothing for ever.
create function is_waited_for(asked confirmations, marketing_status text) returns boolean
language sql stable
as $$
    select confirmation_state(asked.state, asked.expires_at, marketing_status) = 'pending'
       and (asked.expires_at is not null or asked.requested_at > now() - interval '14 days')
$$;
grant execute on function is_waited_for(confirmations, text) to postrider_ingress, postrider_stages;

-- A new enrollment goes through the newest steps, whoever writes it. Writers hold the sequence as it is.
create function enrollment_takes_newest_version() returns trigger
language plpgsql
as $$
begin
    select s.version into strict new.version from sequences s where s.tenant_id = new.tenant_id and s.id = new.sequence_id;
    return new;
end $$;
create trigger enrollments_version before insert on enrollments
    for each row execute function enrollment_takes_newest_version();

-- An enrollment that ends makes one notice, by trigger, in the transaction that ends it. After the last step and after an
-- `end_sequence` step the sequence is completed; every other end before the last step is an exit, and a step that cannot be taken a
-- failure.
create function notice_ended_enrollment() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    insert into notices (tenant_id, id, type, contact_id, subject_id, data)
    values (new.tenant_id, gen_random_uuid(),
            case when new.status = 'failed' then 'enrollment.failed'
                 when new.status = 'completed' or new.exit_reason = 'end_step' then 'sequence.completed'
                 else 'enrollment.exited' end,
            new.contact_id, new.id,
            jsonb_build_object('sequence_id', new.sequence_id)
                || case when new.status = 'failed' then jsonb_build_object('step_order', new.next_step, 'error', new.last_error)
                        when new.status = 'completed' or new.exit_reason = 'end_step' then '{}'
                        else jsonb_build_object('exit_reason', new.exit_reason) end);
    return null;
end $$;
create trigger enrollments_ended after update on enrollments
    for each row when (old.status in ('active', 'paused') and new.status in ('completed', 'exited', 'failed'))
    execute function notice_ended_enrollment();

-- When a contact was enrolled last, of enrollments that retention deleted: `reentry` and its gap ask for it however long ago it was.
-- By trigger. Nothing enters an archived sequence again: retention deletes its rows.
create table past_enrollments (
    tenant_id uuid not null,
    sequence_id uuid not null,
    contact_id uuid not null,
    last_at timestamptz not null,
    primary key (tenant_id, sequence_id, contact_id)
);
select enable_row_security('past_enrollments');
revoke insert, update, delete on past_enrollments from postrider_ingress;

create function note_past_enrollments() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    insert into past_enrollments as p (tenant_id, sequence_id, contact_id, last_at)
    select g.tenant_id, g.sequence_id, g.contact_id, max(g.created_at)
    from gone g
    join sequences s on s.tenant_id = g.tenant_id and s.id = g.sequence_id
    where s.status <> 'archived'
    group by g.tenant_id, g.sequence_id, g.contact_id
    order by g.tenant_id, g.sequence_id, g.contact_id
    on conflict (tenant_id, sequence_id, contact_id) do update set last_at = greatest(p.last_at, excluded.last_at);
    return null;
end $$;
create trigger enrollments_deleted after delete on enrollments
    referencing old table as gone for each statement execute function note_past_enrollments();

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
select enable_row_security('enrollment_steps');

-- Starting by itself -----------------------------------------------------------------------------------------------------------

-- What products report about contacts ("trial_started"): facts, never changed. No foreign key to the contact: contacts are never deleted,
-- and the writer holds them.
create table product_events (
    tenant_id uuid not null,
    id uuid not null,                           -- ordered by the time of its arrival
    product text not null,
    contact_id uuid not null,
    name text not null,
    event_id text,                              -- the product's own id: recorded once
    properties jsonb not null default '{}',
    occurred_at timestamptz not null,
    received_at timestamptz not null default now(),
    primary key (tenant_id, id)
);
create unique index product_events_once on product_events (tenant_id, product, event_id) where event_id is not null;
create index product_events_by_name on product_events (tenant_id, name, occurred_at);
create index product_events_by_contact on product_events (tenant_id, contact_id, name);
select enable_row_security('product_events');
revoke update, delete on product_events from postrider_ingress;

-- The facts of a merged contact are its survivor's: product events and outcomes, and the occurrences of triggers. Those are copied: rows that
-- are not decided may be locked by a stage that waits for this transaction, and finds nothing left for the merged contact; what is decided
-- starts nothing anew, as a date that both contacts have. Segments that the merged contact had entered, or was passed over for, start nothing
-- for the survivor.
create function move_merged_facts() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    update product_events e set contact_id = new.merged_into where e.tenant_id = new.tenant_id and e.contact_id = new.id;
    insert into segment_entries (tenant_id, sequence_id, contact_id)
    select s.tenant_id, s.id, new.merged_into
    from sequences s
    join segment_entries e on e.tenant_id = s.tenant_id and e.sequence_id = s.id and e.contact_id = new.id
    where s.tenant_id = new.tenant_id
    order by s.id
    on conflict do nothing;
    insert into segments_passed (tenant_id, contact_id, passed_at)
    select p.tenant_id, new.merged_into, p.passed_at
    from segments_passed p where p.tenant_id = new.tenant_id and p.contact_id = new.id
    on conflict (tenant_id, contact_id) do update set passed_at = greatest(segments_passed.passed_at, excluded.passed_at);
    insert into trigger_occurrences (tenant_id, sequence_id, contact_id, occurrence, event_id, noted_at, decided_at, outcome, enrollment_id)
    select o.tenant_id, o.sequence_id, new.merged_into, o.occurrence, o.event_id, o.noted_at, o.decided_at, o.outcome, o.enrollment_id
    from sequences s
    join trigger_occurrences o on o.tenant_id = s.tenant_id and o.sequence_id = s.id and o.contact_id = new.id
    where s.tenant_id = new.tenant_id
    order by o.sequence_id, o.occurrence
    on conflict do nothing;
    insert into enrollment_checks (tenant_id, contact_id, replied_to, noted_at)
    select k.tenant_id, new.merged_into, k.replied_to, k.noted_at
    from enrollment_checks k where k.tenant_id = new.tenant_id and k.contact_id = new.id;
    -- In the order in which attribution locks them. The mails of both lead to the outcomes of both from now on.
    perform from outcomes o
    where o.tenant_id = new.tenant_id and o.contact_id in (new.id, new.merged_into) order by o.id for no key update;
    update outcomes o
    set contact_id = new.merged_into, credit_due = now(), credit_reason = restatement_reason(o.credit_reason, 'contact')
    where o.tenant_id = new.tenant_id and o.contact_id in (new.id, new.merged_into);
    return null;
end $$;
create trigger contacts_merged_facts after update of merged_into on contacts
    for each row when (new.merged_into is not null and old.merged_into is null) execute function move_merged_facts();

-- An occurrence of a sequence's trigger for a contact, written in the transaction of what happened or by a sweep that finds it. The key
-- decides that it starts the sequence at most once. The sequencing stage decides whether it does.
create table trigger_occurrences (
    tenant_id uuid not null,
    sequence_id uuid not null,
    contact_id uuid not null,
    occurrence text not null,                   -- names it: the event's id, the field and the day, …
    event_id uuid,                              -- of `product_events`
    noted_at timestamptz not null default clock_timestamp(),
    decided_at timestamptz,
    outcome text check (outcome in ('enrolled', 'reentry', 'gap', 'not_active')),
    enrollment_id uuid,
    primary key (tenant_id, sequence_id, contact_id, occurrence),
    constraint trigger_occurrences_decided_with_outcome check ((decided_at is null) = (outcome is null))
);
create index trigger_occurrences_due on trigger_occurrences (tenant_id, noted_at) where decided_at is null;
-- Retention.
create index trigger_occurrences_by_age on trigger_occurrences (tenant_id, noted_at) where decided_at is not null;
select enable_row_security('trigger_occurrences');
revoke update, delete on trigger_occurrences from postrider_ingress;

-- The contacts that were in the segment of a sequence's trigger when it was looked at last.
create table segment_entries (
    tenant_id uuid not null,
    sequence_id uuid not null,
    contact_id uuid not null,
    primary key (tenant_id, sequence_id, contact_id)
);
select enable_row_security('segment_entries');
revoke update, delete on segment_entries from postrider_ingress;

-- Contacts that start nothing by a segment which they are in at the next look: one row each, however many triggers there are. It counts for
-- the triggers that were looked at last before it.
create table segments_passed (
    tenant_id uuid not null,
    contact_id uuid not null,
    passed_at timestamptz not null,
    primary key (tenant_id, contact_id)
);
-- Looks and retention. Never join the table by contact: with young statistics the planner may take this index for it, and read all of a
-- tenant's rows for each contact.
create index segments_passed_by_age on segments_passed (tenant_id, passed_at);
select enable_row_security('segments_passed');
revoke delete on segments_passed from postrider_ingress;

-- A change of these contacts starts no sequence by the segment that it brings them into. Called at the end of the transaction that changes
-- them: it waits for looks at the tenant's triggers that are under way, and no other begins before the caller's commit.
create function pass_over_segments(of_tenant uuid, contacts uuid[]) returns void
language plpgsql
as $$
begin
    if not exists (select from segment_triggers(of_tenant)) then
        return;
    end if;
    perform pg_advisory_xact_lock(hashtextextended('triggers ' || of_tenant, 0));
    -- After the lock, and later than every look before it, though a clock was set back since.
    insert into segments_passed (tenant_id, contact_id, passed_at)
    select of_tenant, c.id, l.passed_at
    from (
        select greatest(clock_timestamp(), max(s.triggers_swept_at) + interval '1 microsecond') as passed_at
        from segment_triggers(of_tenant) s
        having count(*) > 0
    ) l
    cross join (select distinct w.id from unnest(contacts) as w (id)) c
    order by c.id
    on conflict (tenant_id, contact_id) do update set passed_at = greatest(segments_passed.passed_at, excluded.passed_at);
end $$;
grant execute on function pass_over_segments(uuid, uuid[]) to postrider_ingress;

-- Occurrences of new contacts and new members, a statement for each statement that makes them. A transaction that sets
-- `app.starts_nothing`, as an import does, notes none: no look at a row is made for it. Contacts that the engine makes for transactional and
-- one-off mail, and for tests of campaigns, start nothing.
create function note_created_starts() returns trigger
language plpgsql security definer set search_path from current set plan_cache_mode = auto
as $$
begin
    if current_setting('app.starts_nothing', true) = 'on' or not exists (
        select from sequences s
        where s.trigger_type = 'contact_created' and s.trigger_config is not null and s.status = 'active'
          and s.tenant_id = any (select distinct a.tenant_id from added a)
    ) then
        return null;
    end if;
    insert into trigger_occurrences (tenant_id, sequence_id, contact_id, occurrence)
    select a.tenant_id, s.id, a.id, 'created'
    from (select distinct a.tenant_id from added a) t
    cross join lateral sequences_started_by(t.tenant_id, 'contact_created') s
    join added a on a.tenant_id = t.tenant_id and not is_known_from_mail(a.source)
    on conflict do nothing;
    return null;
end $$;
create trigger contacts_start_sequences after insert on contacts
    referencing new table as added for each statement execute function note_created_starts();

-- Fires after `audience_members_joined`, which removes the members of topics that left them themselves: they did not join.
create function note_joined_starts() returns trigger
language plpgsql security definer set search_path from current set plan_cache_mode = auto
as $$
begin
    if current_setting('app.starts_nothing', true) = 'on' or not exists (
        select from sequences s
        where s.trigger_type in ('list_joined', 'tag_added') and s.trigger_config is not null and s.status = 'active'
          and s.tenant_id = any (select distinct j.tenant_id from joined j)
    ) then
        return null;
    end if;
    insert into trigger_occurrences (tenant_id, sequence_id, contact_id, occurrence)
    select j.tenant_id, s.id, j.contact_id, gen_random_uuid()::text
    from (select distinct j.tenant_id from joined j) t
    cross join (values ('list_joined', 'list_id'), ('tag_added', 'tag_id')) k (kind, key)
    cross join lateral sequences_started_by(t.tenant_id, k.kind) s
    join joined j on j.tenant_id = t.tenant_id and j.audience_id = (s.trigger_config ->> k.key)::uuid
    join audience_members m on m.tenant_id = j.tenant_id and m.audience_id = j.audience_id and m.contact_id = j.contact_id;
    return null;
end $$;
create trigger audience_members_start_sequences after insert on audience_members
    referencing new table as joined for each statement execute function note_joined_starts();

-- Which step a mail is of. Written with the send; the second key makes sure that a step sends one mail, and one more to the contact that its
-- contact is merged into before the mail leaves.
create table sequence_sends (
    tenant_id uuid not null,
    send_id uuid not null,
    sequence_id uuid not null,
    enrollment_id uuid not null,
    step_id uuid not null,
    merges smallint not null default 0,         -- how many it has followed
    primary key (tenant_id, send_id),
    unique (tenant_id, enrollment_id, step_id, merges)
);
select enable_row_security('sequence_sends');

-- Exits ----------------------------------------------------------------------------------------------------------------------

-- Contacts whose enrollments may have to end, written by the writer of the fact, by trigger: an opt-out, a bounce, a complaint, an
-- archived contact, an answer. A step checks for itself before it acts; this is for the time until the next step.
create table enrollment_checks (
    tenant_id uuid not null,
    id bigint generated always as identity,
    contact_id uuid not null,
    replied_to uuid,                            -- the send that was answered
    noted_at timestamptz not null default clock_timestamp(),
    -- The contact's enrollments up to this one are checked, in the order in which they were made.
    reached_at timestamptz not null default 'epoch',
    reached_id uuid not null default '00000000-0000-0000-0000-000000000000',
    primary key (tenant_id, id)
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
-- One that had expired may be in force again.
create trigger suppressions_renewed_end_enrollments after update on suppressions
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

-- Only a person's answer ends an enrollment, not one that a program wrote (RFC 3834), and only one to mail to that person: what
-- `notify_owner` sends is answered by the owner.
create function check_answered_enrollments() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    insert into enrollment_checks (tenant_id, contact_id, replied_to)
    select e.tenant_id, e.contact_id, new.send_id
    from sequence_sends s
    join enrollments e on e.tenant_id = s.tenant_id and e.id = s.enrollment_id
    join sequence_steps p on p.tenant_id = s.tenant_id and p.id = s.step_id and p.step_type = 'send_email'
    where s.tenant_id = new.tenant_id and s.send_id = new.send_id
    -- A merge that is under way is waited for: the note is the survivor's.
    for key share of e;
    return null;
end $$;
create trigger events_end_enrollments after insert on events
    for each row when (new.type = 'replied' and not coalesce((new.detail ->> 'automatic')::boolean, false))
    execute function check_answered_enrollments();
