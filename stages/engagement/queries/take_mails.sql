-- Takes mails that wait to be read, and counts the start before they are read. If the process dies, they are due again after a minute.
-- $1 how many at most, $2 true: only those that were started before. Served by inbound_mails_due.
update inbound_mails m
set attempts = m.attempts + 1, due_at = clock_timestamp() + interval '1 minute'
where m.ctid in (
    select ctid from inbound_mails
    where due_at <= statement_timestamp() and (attempts > 0) = $2 order by due_at, id limit $1 for update skip locked)
returning m.tenant_id, m.id, m.send_id, m.address_kind, m.null_sender, m.head, m.received_at, m.attempts
