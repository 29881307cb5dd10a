-- One-off messages: a body of its own to up to 50 people, dispatched while the caller waits.

-- A body that was written for this very message: rendered as it stands, without Liquid.
alter table contents drop constraint contents_kind_check;
alter table contents add constraint contents_kind_check
    check (kind in ('marketing', 'transactional', 'sequence', 'one_off'));

create table messages (
    tenant_id uuid not null references tenants (id),
    id uuid not null,                           -- also the id of its request and of its batch; low nine bits zero
    sender_id uuid not null,
    content_id uuid not null,
    reply_to text,
    dot_number bigint,                          -- as the caller gave it
    metered integer not null,                   -- recipients that were not blocked: what the hourly limit counts
    created_at timestamptz not null default clock_timestamp(),  -- read under the tenant's lock, unlike now()
    forgotten_at timestamptz,                   -- its attachments and compiled form are gone
    primary key (tenant_id, id),
    foreign key (tenant_id, sender_id) references senders (tenant_id, id),
    foreign key (tenant_id, content_id) references contents (tenant_id, id)
);
create index messages_by_time on messages (tenant_id, created_at);
create index messages_to_forget on messages (created_at) where forgotten_at is null;

-- Who a message is for. Each becomes one send, under the id given here.
create table message_recipients (
    tenant_id uuid not null,
    send_id uuid not null,                      -- message id + place
    message_id uuid not null,
    contact_id uuid not null,
    name text,                                  -- for the To header
    primary key (tenant_id, send_id),
    unique (tenant_id, message_id, contact_id),
    foreign key (tenant_id, message_id) references messages (tenant_id, id),
    foreign key (tenant_id, contact_id) references contacts (tenant_id, id)
);
create index message_recipients_by_contact on message_recipients (tenant_id, contact_id);

-- Attachments as they go over the wire: base64 in lines. Deleted a few days after the message.
create table message_attachments (
    tenant_id uuid not null,
    message_id uuid not null,
    place smallint not null,
    filename text not null,
    media_type text not null,
    encoded bytea not null,
    primary key (tenant_id, message_id, place),
    foreign key (tenant_id, message_id) references messages (tenant_id, id)
);
-- Mostly compressed formats: trying to compress them again costs more than the insert.
alter table message_attachments alter column encoded set storage external;

select wall_off('messages');
select wall_off('message_recipients');
select wall_off('message_attachments');

-- A write whose answer waits for something outside its transaction: what it waits for. The row stays without a status until
-- the outcome is known; `locked_until` is the lease of whoever waits.
alter table idempotency_keys add column waits_for uuid;
