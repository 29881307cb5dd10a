-- Attribution: outcomes, the mails they are credited to, and the totals of campaigns and hours.
--
-- Amounts are whole numbers, so that nothing is ever rounded: premiums in ten-thousandths of a dollar, values in cents. Shares are
-- millionths of an outcome; those of one outcome add up to exactly a million.

-- True until an outcome is credited as it was reported last, by the reason for which it is due.
create function is_report_pending(credit_reason text) returns boolean
language sql immutable parallel safe return credit_reason in ('first', 'changed');
-- The reason of an outcome that something else than a report makes due: that of a report stays.
create function restatement_reason(credit_reason text, otherwise text) returns text
language sql immutable parallel safe return case when is_report_pending(credit_reason) then credit_reason else otherwise end;
grant execute on function is_report_pending(text), restatement_reason(text, text) to postrider_ingress, postrider_stages;

create table outcomes (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    source_system text not null,                -- the product that reported it
    source_event_id text,                       -- the product's own id of the event; without one every report is another outcome
    contact_email text,                         -- canonical, as reported; erased with the contact
    dot_number bigint,                          -- as reported; erased with the contact
    contact_id uuid,                            -- the contact it is about, once there is such a contact
    contact_key text check (contact_key in ('email', 'dot_number')),    -- by which the contact was found
    outcome_type text not null check (outcome_type in ('quote', 'submission', 'bind', 'premium')),
    premium bigint check (premium >= 0),        -- ten-thousandths of a dollar
    value_cents bigint check (value_cents >= 0),
    occurred_at timestamptz not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    -- The work list of the attribution stage: when the outcome is to be credited, and why. Late facts set it to now; without any
    -- it is credited again a few times after its last report all the same. Null: its credit is final. The reason is that of its report
    -- until it is credited as reported (`restatement_reason`).
    credit_due timestamptz default now(),
    credit_reason text not null default 'first'
        check (credit_reason in ('first', 'changed', 'late_fact', 'contact', 'model', 'rescored')),
    -- Its credit; null before the first credit.
    revision integer not null default 0,        -- how often the credit was set
    model text check (model in ('last_touch', 'first_touch', 'linear')),
    click_days integer,
    delivery_days integer,
    rule text check (rule in ('human_click', 'delivered')),             -- null: no mail led to it
    credited_at timestamptz,
    -- What the totals below contain of it; null before the first credit.
    booked_type text,
    booked_hour timestamptz,
    booked_premium bigint,
    booked_value_cents bigint,
    primary key (tenant_id, id),
    unique (tenant_id, source_system, source_event_id),
    constraint outcomes_match_is_whole check (num_nulls(contact_id, contact_key) in (0, 2))
) with (fillfactor = 70);
create index outcomes_newest on outcomes (tenant_id, created_at desc, id desc);
create index outcomes_by_contact on outcomes (tenant_id, contact_id, created_at desc, id desc) where contact_id is not null;
create index outcomes_by_email on outcomes (tenant_id, contact_email) where contact_email is not null;
create index outcomes_by_dot_number on outcomes (tenant_id, dot_number) where dot_number is not null;
create index outcomes_due on outcomes (credit_due) where credit_due is not null;
select enable_row_security('outcomes');

-- The mails an outcome is credited to now.
create table outcome_credits (
    tenant_id uuid not null,
    outcome_id uuid not null,
    send_id uuid not null,
    campaign_id uuid,
    kind text not null check (kind in ('campaign', 'sequence', 'transactional', 'one_off')),
    contact_id uuid not null,
    share integer not null check (share between 1 and 1000000),        -- millionths
    premium bigint,
    value_cents bigint,
    touched_at timestamptz not null,            -- the click, or the delivery
    evidence jsonb not null,                    -- of a click: event_id, url, link_id
    primary key (tenant_id, outcome_id, send_id),
    foreign key (tenant_id, outcome_id) references outcomes (tenant_id, id)
);
create index outcome_credits_by_campaign on outcome_credits (tenant_id, campaign_id, outcome_id) where campaign_id is not null;
select enable_row_security('outcome_credits');

-- Every credit there ever was, the present one last.
create table outcome_restatements (
    tenant_id uuid not null,
    outcome_id uuid not null,
    revision integer not null,
    reason text not null,
    model text not null,
    click_days integer not null,
    delivery_days integer not null,
    rule text,
    credits jsonb not null,                     -- send_id, campaign_id, share, premium, value_cents of each
    restated_at timestamptz not null default now(),
    primary key (tenant_id, outcome_id, revision),
    foreign key (tenant_id, outcome_id) references outcomes (tenant_id, id)
);
-- Retention.
create index outcome_restatements_by_age on outcome_restatements (tenant_id, restated_at);
select enable_row_security('outcome_restatements');

-- How a tenant's outcomes are credited. No row: the defaults.
create table attribution_settings (
    tenant_id uuid primary key references tenants (id),
    model text not null default 'last_touch' check (model in ('last_touch', 'first_touch', 'linear')),
    click_days integer not null default 30 check (click_days between 1 and 365),
    delivery_days integer not null default 7 check (delivery_days between 0 and 365),
    -- After a change: outcomes with greater ids are still to be credited anew. Null: none.
    restate_after uuid,
    updated_at timestamptz not null default now()
);
create index attribution_settings_to_restate on attribution_settings (updated_at) where restate_after is not null;
select enable_row_security('attribution_settings');
revoke delete on attribution_settings from postrider_ingress;

-- Totals ---------------------------------------------------------------------------------------------------------------------

-- Totals for reports, kept in the transaction that sets a credit: by campaign …
create table campaign_outcomes (
    tenant_id uuid not null,
    campaign_id uuid not null,
    outcome_type text not null,
    outcomes bigint not null,
    share bigint not null,                      -- millionths
    premium bigint not null,
    value_cents bigint not null,
    primary key (tenant_id, campaign_id, outcome_type)
) with (fillfactor = 50);
select enable_row_security('campaign_outcomes');

-- … and by the hour (UTC) the outcomes happened in. `kind` is that of the credited mail, or 'recorded': all outcomes, whole.
create table outcome_hours (
    tenant_id uuid not null,
    hour timestamptz not null,
    kind text not null check (kind in ('recorded', 'campaign', 'sequence', 'transactional', 'one_off')),
    outcome_type text not null,
    outcomes bigint not null,
    share bigint not null,
    premium bigint not null,
    value_cents bigint not null,
    primary key (tenant_id, hour, kind, outcome_type)
) with (fillfactor = 50);
select enable_row_security('outcome_hours');

-- Late facts -----------------------------------------------------------------------------------------------------------------

-- What may change a credit and came late: clicks and bounces of mails, clicks that were scored again (`postrider rescore`), and
-- contacts that are new or have another number. Written by triggers for tenants that have outcomes, taken out by the attribution
-- stage within a second. Append-only, so that writers of facts do not wait for each other.
create table late_facts (
    tenant_id uuid not null,
    id bigint generated always as identity,
    source text not null check (source in ('events', 'contacts', 'rescored')),
    ids uuid[] not null,                        -- sends, or contacts
    primary key (tenant_id, id)
);
grant select, insert, update, delete on late_facts to postrider_stages;

create function note_late_facts() returns trigger
language plpgsql security definer set search_path from current set plan_cache_mode = auto
as $$
begin
    insert into late_facts (tenant_id, source, ids)
    select a.tenant_id, 'events', array_agg(distinct a.send_id)
    from added a
    where a.type in ('clicked', 'bounced')
      and exists (select from outcomes o where o.tenant_id = a.tenant_id)
    group by a.tenant_id;
    return null;
end $$;
create trigger events_may_be_late after insert on events
    referencing new table as added for each statement execute function note_late_facts();

create function note_new_contacts() returns trigger
language plpgsql security definer set search_path from current set plan_cache_mode = auto
as $$
begin
    insert into late_facts (tenant_id, source, ids)
    select n.tenant_id, 'contacts', array_agg(n.id)
    from (select a.tenant_id, a.id, (row_number() over (partition by a.tenant_id) - 1) / 1000 as part
          from added a
          where exists (select from outcomes o where o.tenant_id = a.tenant_id)) n
    group by n.tenant_id, n.part;
    return null;
end $$;
create trigger contacts_may_be_awaited after insert on contacts
    referencing new table as added for each statement execute function note_new_contacts();

create function note_new_number() returns trigger
language plpgsql security definer set search_path from current set plan_cache_mode = auto
as $$
begin
    insert into late_facts (tenant_id, source, ids)
    select new.tenant_id, 'contacts', array[new.id]
    where exists (select from outcomes o where o.tenant_id = new.tenant_id);
    return null;
end $$;
create trigger contacts_have_another_number after update of dot_number on contacts
    for each row when (new.dot_number is not null and new.dot_number is distinct from old.dot_number)
    execute function note_new_number();
