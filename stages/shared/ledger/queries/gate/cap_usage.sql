-- A tenant's frequency cap, and what a contact has used of it: as `recipient_eligibility` counts. There is room again when the oldest of as many of the
-- newest mails as the cap allows has left the window. $1 tenant, $2 contact. Served by capped_sends_by_contact.
select t.frequency_cap_messages as "messages!",
       (select count(*) from capped_sends m
        where m.tenant_id = $1 and m.contact_id = $2 and m.fenced_at > now() - t.period) as "used!",
       (select m.fenced_at from capped_sends m
        where m.tenant_id = $1 and m.contact_id = $2 and m.fenced_at > now() - t.period
        order by m.fenced_at desc offset t.frequency_cap_messages - 1 limit 1) + t.period as opens_at
from (
    select t.frequency_cap_messages, make_interval(hours => 24 * t.frequency_cap_days) as period
    from tenants t
    where t.id = $1 and t.frequency_cap_messages is not null
) t
