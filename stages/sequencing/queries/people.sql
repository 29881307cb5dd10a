-- The contacts of a group, their eligibility, and whether an unhandled answer is one to the enrollment's own
-- mail. $1 tenants, $2 contacts, $3 enrollments, $4 and $5 the events that end them, if any: name and properties. All by key.
select w.place as "place!", s.address as "address!", s.contact_active as "contact_active!",
       s.marketing_status as "marketing_status!", s.hard_bounced as "hard_bounced!", s.complained as "complained!",
       s.unsubscribed as "unsubscribed!", s.invalid as "invalid!", s.suppressed_all as "suppressed_all!",
       s.suppressed_marketing as "suppressed_marketing!", s.cap_left, c.timezone, c.first_name, c.last_name,
       exists (
           select from enrollment_checks k
           join sequence_sends q on q.tenant_id = k.tenant_id and q.send_id = k.replied_to
           where k.tenant_id = w.tenant_id and k.contact_id = w.contact_id and q.enrollment_id = w.enrollment_id
       ) as "replied!",
       w.exit_name is not null and exists (
           select from enrollments e
           join product_events p on p.tenant_id = e.tenant_id and p.contact_id = e.contact_id and p.name = w.exit_name
           where e.tenant_id = w.tenant_id and e.id = w.enrollment_id and p.properties @> w.exit_properties
             and (p.received_at >= e.created_at or p.id > e.event_id) and p.occurred_at > p.received_at - interval '1 day'
       ) as "ended_by_event!"
from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::jsonb[]) with ordinality
    as w (tenant_id, contact_id, enrollment_id, exit_name, exit_properties, place)
cross join lateral recipient_eligibility(w.tenant_id, array[w.contact_id]) s
cross join lateral (
    select c.timezone, c.first_name, c.last_name from contacts c
    where c.tenant_id = w.tenant_id and c.id = w.contact_id
    offset 0
) c
