-- Removing a sender asks these tables whether they refer to it: a tenant may have as many batches as mails. It has few senders, so the
-- entries take little room.
create index batches_by_sender on batches (tenant_id, sender_id);
create index messages_by_sender on messages (tenant_id, sender_id);
