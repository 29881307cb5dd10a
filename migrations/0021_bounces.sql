-- What comes back by mail: bounces, complaints and answers as mails of their own, mailboxes that fail again and again, and answers
-- as facts about sends.

-- A mail that came to a return path or a feedback address: committed before it is answered 250, read by engagement. What was in
-- it goes as soon as it is read; that it came stays for some days, so that a repetition counts once.
create table inbound_mails (
    tenant_id uuid not null references tenants (id),
    id uuid not null,                           -- of the send and the octets: a repetition is the same mail
    send_id uuid not null,                      -- proved by the signed address, or by a signed part of the mail it reports
    road text not null check (road in ('return_path', 'feedback')),
    null_sender boolean not null,               -- MAIL FROM:<>, as reports have
    size integer not null,
    head bytea check (octet_length(head) <= 1048576),   -- its beginning; null once read
    outcome text,                               -- null: not read yet; else what it was
    attempts smallint not null default 0,
    due_at timestamptz default clock_timestamp(),       -- null once read
    received_at timestamptz not null default now(),
    primary key (tenant_id, id)
);
create index inbound_mails_due on inbound_mails (due_at, id) where due_at is not null;
create index inbound_mails_by_age on inbound_mails (received_at);
select wall_off('inbound_mails');
revoke all on inbound_mails from postrider_ingress;

-- A return path names its send and no tenant: there is no room for one. Batches know theirs.
create index batches_by_id on batches (id);

-- Mails that a mailbox could not take for now: full, switched off, its server away. Enough of them, and nothing that arrived in
-- between, and it gets no marketing mail for a while.
create table soft_bounces (
    tenant_id uuid not null references tenants (id),
    contact_id uuid not null,
    send_id uuid not null,
    occurred_at timestamptz not null,
    judged boolean not null default false,
    primary key (tenant_id, contact_id, send_id)
);
create index soft_bounces_unjudged on soft_bounces (tenant_id, contact_id) where not judged;
create index soft_bounces_by_age on soft_bounces (occurred_at);
select wall_off('soft_bounces');
revoke all on soft_bounces from postrider_ingress;

-- By trigger, because these facts have two writers: delivery, when the schedule of attempts is over, and engagement, when the
-- mail comes back. The condition is looked at for each fact and keeps all others from costing more than that.
create function note_soft_bounce() returns trigger
language plpgsql security definer set search_path from current set plan_cache_mode = auto
as $$
begin
    insert into soft_bounces (tenant_id, contact_id, send_id, occurred_at)
    select s.tenant_id, s.contact_id, s.id, new.occurred_at
    from sends s where s.tenant_id = new.tenant_id and s.id = new.send_id and s.month = new.month
    on conflict do nothing;
    return null;
end $$;
create trigger events_note_soft_bounce after insert on events
    for each row when (
        new.type in ('bounced', 'failed', 'expired')
        and coalesce(new.detail ->> 'class', new.detail ->> 'reason') in ('soft', 'mailbox_full', 'inactive'))
    execute function note_soft_bounce();

-- A suppression as `invalid` that is for marketing only is for marketing only: it is how a mailbox that was full is left alone
-- for a while, and it must not keep a password reset from its owner.
create or replace function standings(of_tenant uuid, of_contacts uuid[])
returns table (
    contact_id uuid, address text, contact_active boolean, marketing_status text, hard_bounced boolean, complained boolean,
    unsubscribed boolean, invalid boolean, suppressed_all boolean, suppressed_marketing boolean
)
language sql stable parallel safe
as $$
    select c.id, c.address, c.status = 'active', c.marketing_status,
           s.held & 1 <> 0, s.held & 2 <> 0, s.held & 8 <> 0, s.held & 4 <> 0,
           s.held & 16 <> 0
               or (c.address like 'suppressed%@sandbox.test' and substr(c.address, 11, 1) in ('@', '+')
                   and (select t.environment = 'sandbox' from tenants t where t.id = of_tenant)),
           s.held & 32 <> 0
    from unnest(of_contacts) as w (id)
    cross join lateral (
        select c.id, c.address, c.status, c.marketing_status
        from contacts c
        where c.tenant_id = of_tenant and c.id = w.id
        offset 0
    ) c
    cross join lateral (
        select coalesce(bit_or(case s.reason
                      when 'hard_bounce' then 1
                      when 'complaint' then 2
                      when 'invalid' then case s.scope when 'all' then 4 else 32 end
                      when 'unsubscribe' then 8
                      else case s.scope when 'all' then 16 else 32 end
                  end), 0) as held
        from suppressions s
        where s.tenant_id = of_tenant and s.address = c.address and (s.expires_at is null or s.expires_at > now())
    ) s
$$;

-- Answers. Only a person's is counted; what a program wrote (RFC 3834) is kept as an event.
alter table sends add column replied_at timestamptz;
alter table batches add column replied integer not null default 0;

-- As in 0007, with `replied`.
create or replace function note_contact_facts() returns trigger
language plpgsql set plan_cache_mode = auto
as $$
begin
    insert into contact_facts as known (tenant_id, send_id, fact, contact_id, occurred_at, human_at)
    select new.tenant_id, new.id, told.fact, new.contact_id, told.at, told.human_at
    from (values
        ('opened', old.opened_at, new.opened_at, old.human_opened_at, new.human_opened_at),
        ('clicked', old.clicked_at, new.clicked_at, old.human_clicked_at, new.human_clicked_at),
        ('bounced', old.bounced_at, new.bounced_at, null, null),
        ('complained', old.complained_at, new.complained_at, null, null),
        ('unsubscribed', old.unsubscribed_at, new.unsubscribed_at, null, null),
        ('replied', old.replied_at, new.replied_at, null, null)
    ) as told (fact, before, at, human_before, human_at)
    where told.at is not null and (told.at is distinct from told.before or told.human_at is distinct from told.human_before)
    on conflict (tenant_id, send_id, fact) do update set occurred_at = excluded.occurred_at, human_at = excluded.human_at;
    -- A fact that is taken back, as when a failed send is tried again.
    if (new.opened_at is null and old.opened_at is not null) or (new.clicked_at is null and old.clicked_at is not null)
       or (new.bounced_at is null and old.bounced_at is not null) or (new.complained_at is null and old.complained_at is not null)
       or (new.unsubscribed_at is null and old.unsubscribed_at is not null) or (new.replied_at is null and old.replied_at is not null) then
        delete from contact_facts gone
        where gone.tenant_id = new.tenant_id and gone.send_id = new.id
          and case gone.fact
                  when 'opened' then new.opened_at is null
                  when 'clicked' then new.clicked_at is null
                  when 'bounced' then new.bounced_at is null
                  when 'complained' then new.complained_at is null
                  when 'unsubscribed' then new.unsubscribed_at is null
                  when 'replied' then new.replied_at is null
              end;
    end if;
    return null;
end $$;

drop trigger sends_note_facts on sends;
create trigger sends_note_facts
    after update of opened_at, clicked_at, bounced_at, complained_at, unsubscribed_at, human_opened_at, human_clicked_at, replied_at
    on sends for each row
    when (row (new.opened_at, new.clicked_at, new.bounced_at, new.complained_at, new.unsubscribed_at, new.human_opened_at, new.human_clicked_at, new.replied_at)
          is distinct from
          row (old.opened_at, old.clicked_at, old.bounced_at, old.complained_at, old.unsubscribed_at, old.human_opened_at, old.human_clicked_at, old.replied_at))
    execute function note_contact_facts();
