-- Feedback: what providers, mail servers and recipients report about mail that was sent.

-- Raw provider events, as they came. The row is committed before the provider is answered 2xx; engagement handles it. Kept for some
-- days after that, for inspection and to recognise repetitions.
create table inbound_events (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    connection_id uuid not null,                -- outlives the connection
    provider text not null,
    dedupe_key text not null,                   -- the event's, for its provider
    nonce text not null,                        -- this request's: the same one twice is a replay, another one a second delivery
    raw bytea not null check (octet_length(raw) <= 1048576),
    state text not null default 'received' check (state in ('received', 'handled', 'rejected')),
    reason text,                                -- why rejected: a code
    facts integer,                              -- how many facts it contained
    attempts smallint not null default 0,
    due_at timestamptz default clock_timestamp(),   -- null once handled or rejected
    received_at timestamptz not null default now(),
    handled_at timestamptz,
    primary key (tenant_id, id),
    unique (tenant_id, connection_id, dedupe_key)
);
create index inbound_events_due on inbound_events (due_at, id) where due_at is not null;
create index inbound_events_of_tenant on inbound_events (tenant_id, due_at, id) where due_at is not null;
create index inbound_events_again on inbound_events (tenant_id, due_at, id) where due_at is not null and attempts > 0;
create index inbound_events_by_age on inbound_events (received_at);
create index inbound_events_rejected on inbound_events (tenant_id, id) where state = 'rejected';
select enable_row_security('inbound_events');
-- The ingress may add events, and distinguish a replay from a second delivery; nothing else.
revoke all on inbound_events from postrider_ingress;
grant insert on inbound_events to postrider_ingress;
grant select (tenant_id, connection_id, dedupe_key, nonce) on inbound_events to postrider_ingress;

-- Mail that came to a return path or a feedback address: bounces, complaints and answers. Committed before it is answered 250, read
-- by engagement. Its content goes as soon as it is read; the row stays for some days, so that a repetition counts once.
create table inbound_mails (
    tenant_id uuid not null references tenants (id),
    id uuid not null,                           -- of the send and the octets: a repetition is the same mail
    send_id uuid not null,                      -- proved by the signed address, or by a signed part of the mail it reports
    address_kind text not null check (address_kind in ('return_path', 'feedback')),     -- the kind of address it came to
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
create index inbound_mails_of_tenant on inbound_mails (tenant_id, due_at, id) where due_at is not null;
create index inbound_mails_again on inbound_mails (tenant_id, due_at, id) where due_at is not null and attempts > 0;
create index inbound_mails_unread on inbound_mails (tenant_id, send_id) where due_at is not null;
create index inbound_mails_by_age on inbound_mails (received_at);
-- Those that were given up and kept for a look: an erasure finds them.
create index inbound_mails_given_up on inbound_mails (tenant_id, send_id) where due_at is null and head is not null;
select enable_row_security('inbound_mails');
revoke all on inbound_mails from postrider_ingress;

-- Pending facts: reported before the send's own commit, or about a send that is not known. They are tried again with growing
-- pauses for 72 hours, or for one hour if they name no send, then dropped; a dropped fact stays here for some days more.
create table pending_facts (
    tenant_id uuid not null references tenants (id),
    id uuid not null,                           -- the fact's own id
    reason text not null check (reason in ('unknown_send', 'undecided_send')),
    send_id uuid,
    provider text,                              -- null: reported by a link of ours
    provider_message_id text,
    signal jsonb,                               -- null: says only that the mail has left
    occurred_at timestamptz not null,
    pending_since timestamptz not null default now(),
    attempts smallint not null default 0,
    due_at timestamptz,                         -- null: dropped
    dropped_at timestamptz,
    primary key (tenant_id, id, reason),
    check (send_id is not null or provider is not null and provider_message_id is not null)
);
create index pending_facts_due on pending_facts (due_at, id) where due_at is not null;
create index pending_facts_of_tenant on pending_facts (tenant_id, due_at, id) where due_at is not null;
create index pending_facts_dropped on pending_facts (dropped_at) where dropped_at is not null;
-- The evidence about a send, when its outcome becomes unknown. Few facts come before their send's own commit.
create index pending_facts_evidence on pending_facts (tenant_id, send_id) where reason = 'undecided_send';
select enable_row_security('pending_facts');
revoke all on pending_facts from postrider_ingress;

-- Whether it is known of a send that it has left, though its attempt had no answer: something was reported of it, a provider's event waits as
-- evidence, or a mail that came back is not read yet. Asked before the fence of a send in doubt, which is not tried again then. Served by the
-- primary key, pending_facts_evidence and inbound_mails_unread.
create function has_evidence(of_tenant uuid, send uuid, send_month date) returns boolean
language sql stable parallel safe
as $$
    select exists (
               select from sends s
               where s.tenant_id = of_tenant and s.id = send and s.month = send_month
                 and coalesce(s.delivered_at, s.bounced_at, s.complained_at, s.opened_at, s.clicked_at, s.replied_at, s.unsubscribed_at)
                     is not null)
        or exists (
               select from pending_facts p
               where p.tenant_id = of_tenant and p.send_id = send and p.reason = 'undecided_send')
        or exists (
               select from inbound_mails m
               where m.tenant_id = of_tenant and m.send_id = send and m.due_at is not null)
$$;
grant execute on function has_evidence(uuid, uuid, date) to postrider_stages;

-- Provider messages ----------------------------------------------------------------------------------------------------------

-- Which send a provider's message is, for events that do not carry the send's id. For mail through tenants' own accounts only: an
-- index on `sends` would cost every mail its HOT update. By trigger, so that every writer of the id does it.
create table provider_messages (
    tenant_id uuid not null references tenants (id),
    provider text not null,
    message_id text not null,                   -- without angle brackets
    send_id uuid not null,
    noted_at timestamptz not null default now(),
    primary key (tenant_id, provider, message_id)
);
-- Not a summary of blocks: pages are used again, and a summary never narrows, so that each would seem to have old rows.
create index provider_messages_by_age on provider_messages (noted_at);
select enable_row_security('provider_messages');
revoke all on provider_messages from postrider_ingress;

create function note_provider_message() returns trigger
language plpgsql set plan_cache_mode = auto
as $$
begin
    insert into provider_messages (tenant_id, provider, message_id, send_id)
    values (new.tenant_id, new.provider, btrim(new.provider_message_id, '<>'), new.id)
    on conflict (tenant_id, provider, message_id) do nothing;
    return null;
end $$;
create trigger sends_note_provider_message after update of provider_message_id on sends
    for each row when (
        new.provider in ('ses', 'postmark', 'sendgrid', 'mailgun', 'resend') and new.provider_message_id is not null
        and new.provider_message_id is distinct from old.provider_message_id)
    execute function note_provider_message();

-- Soft bounces ---------------------------------------------------------------------------------------------------------------

-- Mails that a mailbox could not take for now: full, switched off, its server away. After enough of them, with nothing that arrived
-- in between, the contact gets no marketing mail for a while.
create table soft_bounces (
    tenant_id uuid not null references tenants (id),
    contact_id uuid not null,
    send_id uuid not null,
    occurred_at timestamptz not null,
    checked boolean not null default false,
    primary key (tenant_id, contact_id, send_id)
);
create index soft_bounces_unchecked on soft_bounces (tenant_id, contact_id) where not checked;
create index soft_bounces_by_age on soft_bounces (occurred_at);
select enable_row_security('soft_bounces');
revoke all on soft_bounces from postrider_ingress;

-- By trigger, because these facts have two writers: delivery, when the retry deadline has passed, and engagement, when the mail
-- comes back. The condition is checked for each fact; for all other facts the check is the whole cost.
create function note_soft_bounce() returns trigger
language plpgsql security definer set search_path from current set plan_cache_mode = auto
as $$
begin
    insert into soft_bounces (tenant_id, contact_id, send_id, occurred_at)
    select s.tenant_id, s.contact_id, s.id, new.occurred_at
    from sends s
    where s.tenant_id = new.tenant_id and s.id = new.send_id and s.month = new.month
      and not exists (select from messages m where m.tenant_id = s.tenant_id and m.id = s.request_id and m.is_test)
    on conflict do nothing;
    return null;
end $$;
create trigger events_note_soft_bounce after insert on events
    for each row when (
        new.type in ('bounced', 'failed', 'expired')
        and coalesce(new.detail ->> 'class', new.detail ->> 'reason') in ('soft', 'mailbox_full', 'inactive'))
    execute function note_soft_bounce();

-- Facts by contact -----------------------------------------------------------------------------------------------------------

-- The rare facts about sends (opened, clicked, bounced, complained, unsubscribed, replied), by contact: one row for each send and
-- fact. Segments ask "who clicked in the last 30 days", and `sends` has no index that answers it: one by contact would cost
-- the campaign's insert rate, and reading all sends takes seconds for each million. Facts that nearly every send has (sent,
-- delivered) are read from `sends`.
create table contact_facts (
    tenant_id uuid not null,
    send_id uuid not null,
    fact text not null,                         -- opened, clicked, bounced, complained, unsubscribed, replied
    contact_id uuid not null,
    occurred_at timestamptz not null,           -- the first time, as on the send
    human_at timestamptz,                       -- the first time by a person; opened and clicked only
    primary key (tenant_id, send_id, fact)      -- a campaign's sends are one range of ids
);
create index contact_facts_by_time on contact_facts (tenant_id, fact, occurred_at);
create index contact_facts_by_human on contact_facts (tenant_id, fact, human_at) where human_at is not null;
-- Clicks of one contact: for attribution.
create index contact_facts_human_clicks on contact_facts (tenant_id, contact_id, human_at)
    where fact = 'clicked' and human_at is not null;
select enable_row_security('contact_facts');

-- A trigger, because the facts on `sends` have several writers (engagement, delivery, provider events) and must not come
-- apart from this table. Only columns of facts fire it, and only when one changed, so that what a
-- campaign does to every send (fence, result) pays a comparison and no more.
-- Its own plan_cache_mode: the pools plan every statement anew, which here would cost more than the insert.
create function note_contact_facts() returns trigger
language plpgsql set plan_cache_mode = auto
as $$
begin
    insert into contact_facts as known (tenant_id, send_id, fact, contact_id, occurred_at, human_at)
    select new.tenant_id, new.id, changed.fact,
           -- The send keeps the id of a contact that was merged; its facts are those of the one that is left. A merge that is under way is waited
           -- for, and one that comes later moves this row.
           coalesce((select c.merged_into from contacts c where c.tenant_id = new.tenant_id and c.id = new.contact_id for key share), new.contact_id),
           changed.at, changed.human_at
    from (values
        ('opened', old.opened_at, new.opened_at, old.human_opened_at, new.human_opened_at),
        ('clicked', old.clicked_at, new.clicked_at, old.human_clicked_at, new.human_clicked_at),
        ('bounced', old.bounced_at, new.bounced_at, null, null),
        ('complained', old.complained_at, new.complained_at, null, null),
        ('unsubscribed', old.unsubscribed_at, new.unsubscribed_at, null, null),
        ('replied', old.replied_at, new.replied_at, null, null)
    ) as changed (fact, before, at, human_before, human_at)
    where changed.at is not null and (changed.at is distinct from changed.before or changed.human_at is distinct from changed.human_before)
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
create trigger sends_note_facts
    after update of opened_at, clicked_at, bounced_at, complained_at, unsubscribed_at, human_opened_at, human_clicked_at, replied_at
    on sends for each row
    when (row (new.opened_at, new.clicked_at, new.bounced_at, new.complained_at, new.unsubscribed_at, new.human_opened_at, new.human_clicked_at, new.replied_at)
          is distinct from
          row (old.opened_at, old.clicked_at, old.bounced_at, old.complained_at, old.unsubscribed_at, old.human_opened_at, old.human_clicked_at, old.replied_at))
    execute function note_contact_facts();
