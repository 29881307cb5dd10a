-- The events that started the enrollments behind these sends; `place` is the position in the arrays given.
select w.place as "place!", p.name, p.occurred_at, p.properties
from unnest($1::uuid[], $2::uuid[]) with ordinality as w (tenant_id, send_id, place)
join sequence_sends s on s.tenant_id = w.tenant_id and s.send_id = w.send_id
join enrollments e on e.tenant_id = s.tenant_id and e.id = s.enrollment_id
join product_events p on p.tenant_id = e.tenant_id and p.id = e.event_id
