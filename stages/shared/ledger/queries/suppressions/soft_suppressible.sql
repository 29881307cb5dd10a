-- The mailboxes that are to be suppressed for $5 seconds, for marketing mail. The suppression expires; neither a delivery nor a second
-- check shortens it. One that another source set and that is in force is left alone. $1 tenants, $2 contacts, which are locked, $3 their
-- last soft bounces, $4 how many there were. By primary key, and by address.
select w.tenant_id as "tenant_id!", c.address as "address!", w.send_id as "send_id!", w.times as "times!",
       now() + make_interval(secs => $5) as "until!"
from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[]) as w (tenant_id, id, send_id, times)
cross join lateral (
    select c.address from contacts c where c.tenant_id = w.tenant_id and c.id = w.id and c.status <> 'erased' offset 0
) c
where not exists (
    select from suppressions s
    where s.tenant_id = w.tenant_id and s.address = c.address and s.reason = 'invalid' and s.source <> 'engagement'
      and is_in_force(s.expires_at))
