-- Notes the contacts whose enrollments new events may end. $1 tenant, $2 events.
insert into enrollment_checks (tenant_id, contact_id)
select distinct e.tenant_id, e.contact_id
from product_events e
join sequences s on s.tenant_id = $1 and s.exit_event ->> 'event' = e.name
    and e.properties @> coalesce(s.exit_event -> 'properties', '{}')
join enrollments n on n.tenant_id = $1 and n.contact_id = e.contact_id and n.sequence_id = s.id and n.status in ('active', 'paused')
where e.tenant_id = $1 and e.id = any ($2) and e.occurred_at > e.received_at - interval '1 day'
