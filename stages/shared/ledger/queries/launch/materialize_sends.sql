-- Writes the audience of a launch to `sends`: every active contact that is a member of one of the audiences, once, numbered in
-- the order of contact ids. Suppressed and opted-out contacts as well: the gate gives them their reason.
-- $1 tenant, $2 audiences, $3 launch prefix, $4 month, $5 campaign, $6 sends per batch, $7 true if the audience is pinned: then
-- it is the contacts of `launch_audiences`, also those archived since. A send's number is its batch's number and, in the low nine
-- bits, its position in the batch (`LaunchId`). About 5.5 s for 1,000,000 contacts, mostly the two indexes.
insert into sends (tenant_id, id, month, campaign_id, contact_id)
select $1, ($3 || lpad(to_hex(((n - 1) / $6) << 9 | (n - 1) % $6), 9, '0'))::uuid, $4, $5, m.id
from (
    select c.id, row_number() over (order by c.id) as n
    from contacts c
    where c.tenant_id = $1
      and (c.status = 'active' or $7)
      and c.id in (
          select a.contact_id from audience_members a where a.tenant_id = $1 and a.audience_id = any ($2) and not $7
          union all
          select unnest(p.contacts) from launch_audiences p where p.tenant_id = $1 and p.campaign_id = $5 and $7)
) m
