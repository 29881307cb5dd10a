-- Deliveries with their bodies. $1 tenants, $2 ids, $3 when they are due by the queue: one that was tried since then is due at another time.
-- Primary keys. No body: it is gone, with the contact it is about or by its age.
select d.id as "id!", d.event_id as "event_id!", d.type as "event_type!", d.attempts as "attempts!", d.replayed as "replayed!",
       d.created_at as "created_at!", w.due_at as "due_at!", e.body as "body?", e.traceparent as "traceparent?"
from unnest($1::uuid[], $2::uuid[], $3::timestamptz[]) as w (tenant_id, id, due_at)
join webhook_deliveries d on d.tenant_id = w.tenant_id and d.id = w.id and d.status = 'pending' and d.next_attempt_at = w.due_at
left join webhook_events e on e.tenant_id = w.tenant_id and e.product = d.product and e.id = d.event_id
