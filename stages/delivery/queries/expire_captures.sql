-- Captured mails are kept for a week. Served by captured_mails_by_age.
delete from captured_mails m
using (select c.tenant_id, c.send_id from captured_mails c where c.captured_at < now() - interval '7 days' limit 5000) old
where m.tenant_id = old.tenant_id and m.send_id = old.send_id
