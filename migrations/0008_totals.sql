-- Totals for reports, by the hour (UTC): a tenant's day is one of its own time zone, which only the reader knows.
-- The totals of suppressions are beside them in 0002, those of outcomes in 0011.

-- Totals per tenant, hour and kind of message. `shard` spreads writers of one tenant over several rows; readers sum.
--   kind   campaign | sequence | transactional | one_off, with what happened as event
--          failure, with the class or reason of failed, expired and unknown sends as event
--          suppression, with the reason of new suppressions as event
create table rollups (
    tenant_id uuid not null references tenants (id),
    hour timestamptz not null,
    kind text not null,
    event text not null,
    shard smallint not null,
    count bigint not null,
    primary key (tenant_id, hour, kind, event, shard)
) with (fillfactor = 50);
create index rollups_by_hour on rollups (hour);
-- What is to be merged: empty but for the last hours. Neither column changes, so updates stay HOT.
create index rollups_shards on rollups (hour) where shard <> 0;
select enable_row_security('rollups');

-- Totals of transactional mail by template, and of sequences' mail by template and sequence: for the list of top messages and the
-- reports by trigger. A transactional message is a batch of one, so summing batches would be summing messages. A trigger appends to
-- `content_changes`, which the engagement stage folds into `content_totals`; a reader adds the two.
create table content_changes (
    tenant_id uuid not null references tenants (id),
    hour timestamptz not null,
    content_id uuid not null,
    sequence_id uuid not null default '00000000-0000-0000-0000-000000000000',   -- nil for mail of no sequence
    sent integer not null,
    delivered integer not null default 0,
    confirmed integer not null default 0,
    bounced integer not null,
    complained integer not null,
    opened integer not null,
    opened_human integer not null,
    clicked integer not null,
    clicked_human integer not null,
    replied integer not null default 0,
    unsubscribed integer not null
);
create index content_changes_by_tenant on content_changes (tenant_id);
select enable_row_security('content_changes');

create table content_totals (
    tenant_id uuid not null references tenants (id),
    hour timestamptz not null,
    content_id uuid not null,
    sequence_id uuid not null default '00000000-0000-0000-0000-000000000000',   -- nil for mail of no sequence
    sent bigint not null,
    delivered bigint not null default 0,
    confirmed bigint not null default 0,
    bounced bigint not null,
    complained bigint not null,
    opened bigint not null,
    opened_human bigint not null,
    clicked bigint not null,
    clicked_human bigint not null,
    replied bigint not null default 0,
    unsubscribed bigint not null,
    primary key (tenant_id, hour, content_id, sequence_id)
);
select enable_row_security('content_totals');

-- Every change of a batch counts with the hour in which the batch was made. A late bounce takes a delivery back from the hour that has it, so no
-- window is below zero. A batch of a sequence is one step's: its first send says which sequence it is. Looked at by row: most changes of
-- batches, fences and all of campaigns, change nothing that is noted here.
create function note_content_changes() returns trigger
language plpgsql
as $$
begin
    insert into content_changes (tenant_id, hour, content_id, sequence_id, sent, bounced, complained, opened, opened_human, clicked,
                                 clicked_human, unsubscribed, replied, delivered, confirmed)
    values (new.tenant_id, date_trunc('hour', new.created_at, 'UTC'), new.content_id,
            coalesce((select q.sequence_id from sequence_sends q
                      where new.kind = 'sequence' and q.tenant_id = new.tenant_id and q.send_id = new.id),
                     '00000000-0000-0000-0000-000000000000'),
            new.sent - old.sent, new.bounced - old.bounced, new.complained - old.complained, new.opened - old.opened,
            new.opened_human - old.opened_human, new.clicked - old.clicked, new.clicked_human - old.clicked_human,
            new.unsubscribed - old.unsubscribed, new.replied - old.replied, new.delivered - old.delivered,
            new.confirmed - old.confirmed);
    return null;
end $$;
create trigger batches_changed after update on batches for each row
    when (new.kind in ('transactional', 'sequence')
          and (new.sent, new.bounced, new.complained, new.opened, new.opened_human, new.clicked, new.clicked_human, new.unsubscribed,
               new.replied, new.delivered, new.confirmed)
           <> (old.sent, old.bounced, old.complained, old.opened, old.opened_human, old.clicked, old.clicked_human, old.unsubscribed,
               old.replied, old.delivered, old.confirmed))
    execute function note_content_changes();
