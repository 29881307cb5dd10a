-- Deletes all but the newest captured mails of these tenants ($2 of each). Served by captured_mails_newest; rows another process has
-- locked are left to it.
delete from captured_mails m
using unnest($1::uuid[]) as t (tenant_id)
where m.tenant_id = t.tenant_id and m.send_id in (
    select c.send_id from captured_mails c
    where c.tenant_id = t.tenant_id
    order by c.captured_at desc, c.send_id desc
    offset $2
    for update skip locked)
