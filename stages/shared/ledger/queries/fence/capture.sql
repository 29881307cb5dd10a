-- Stores mails that the capture provider took. A send that was captured before keeps its first copy.
insert into captured_mails (tenant_id, send_id, source, is_cut, captured_at)
select u.tenant_id, u.send_id, u.source, u.is_cut, clock_timestamp()
from unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::bool[]) as u (tenant_id, send_id, source, is_cut)
on conflict do nothing
