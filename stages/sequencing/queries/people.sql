-- The contacts of a group, their eligibility, whether they are asked to confirm their consent, and whether an unhandled answer is one to the
-- enrollment's own mail. Mail of sequences on its way, which what is set aside is not, takes room under the frequency cap: what is older than
-- two months is rare, and the fence counts it. $1 tenants, $2 contacts, $3 enrollments, $4 and $5 the events that end them, if any: name and properties, $6 sequences.
-- All by key.
select w.place as "place!", s.address as "address!", s.contact_active as "contact_active!",
       s.marketing_status as "marketing_status!", s.hard_bounced as "hard_bounced!", s.complained as "complained!",
       s.unsubscribed as "unsubscribed!", s.invalid as "invalid!", s.suppressed_all as "suppressed_all!",
       s.suppressed_marketing as "suppressed_marketing!",
       case when s.cap_left > 0 then s.cap_left - (
           select count(*) from sends m
           join sequence_sends q on q.tenant_id = m.tenant_id and q.send_id = m.id
           join sequence_steps p on p.tenant_id = q.tenant_id and p.id = q.step_id and p.step_type = 'send_email'
           where m.tenant_id = w.tenant_id and m.contact_id = w.contact_id and m.campaign_id is null and m.state in ('queued', 'deferred')
             and m.month >= date_trunc('month', now() at time zone 'UTC')::date - interval '1 month'
             and (select is_set_aside(b.announce_after, b.quiet_at) from batches b
                  where b.tenant_id = m.tenant_id and b.id = batch_of(m.id)) is not true
       ) else s.cap_left end as cap_left,
       s.timezone as quiet_zone, c.timezone, c.first_name, c.last_name,
       s.marketing_status = 'pending' and exists (
           select from confirmations f
           where f.tenant_id = w.tenant_id and f.contact_id = w.contact_id
             and is_waited_for(f, s.marketing_status)
       ) as "is_asked_to_confirm!",
       exists (
           select from enrollment_checks k
           join sequence_sends q on q.tenant_id = k.tenant_id and q.send_id = k.replied_to
           where k.tenant_id = w.tenant_id and k.contact_id = w.contact_id and q.enrollment_id = w.enrollment_id
       ) as "replied!",
       w.exit_name is not null and exists (
           select from enrollments e
           join product_events p on p.tenant_id = e.tenant_id and p.contact_id = e.contact_id and p.name = w.exit_name
           where e.tenant_id = w.tenant_id and e.id = w.enrollment_id and p.properties @> w.exit_properties
             -- Later than what started it: of the events of one request, by their ids.
             and (p.received_at, p.id) > (e.started_at, coalesce(e.event_id, '00000000-0000-0000-0000-000000000000'))
             and p.occurred_at > p.received_at - interval '1 day'
       ) as "ended_by_event!",
       (
           -- By `enrollments_by_contact`.
           select coalesce(sum(e.steps_today), 0)
           from (select e.* from enrollments e where e.tenant_id = w.tenant_id and e.contact_id = w.contact_id offset 0) e
           where e.sequence_id = w.sequence_id and e.steps_day = (now() at time zone 'UTC')::date
       ) as "steps_today!"
from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::jsonb[], $6::uuid[]) with ordinality
    as w (tenant_id, contact_id, enrollment_id, exit_name, exit_properties, sequence_id, place)
cross join lateral recipient_eligibility(w.tenant_id, array[w.contact_id]) s
cross join lateral (
    select c.timezone, c.first_name, c.last_name from contacts c
    where c.tenant_id = w.tenant_id and c.id = w.contact_id
    offset 0
) c
