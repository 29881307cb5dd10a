-- Notes the sequences that new events start, at the time of the event's arrival. $1 tenant, $2 events. An event of more than a day ago
-- starts nothing.
insert into trigger_occurrences (tenant_id, sequence_id, contact_id, occurrence, event_id, noted_at)
select e.tenant_id, s.id, e.contact_id, e.id::text, e.id, e.received_at
from product_events e
join sequences_started_by($1, 'event') s
    on s.trigger_config ->> 'event' = e.name and e.properties @> coalesce(s.trigger_config -> 'properties', '{}')
where e.tenant_id = $1 and e.id = any ($2) and e.occurred_at > e.received_at - interval '1 day'
on conflict do nothing
