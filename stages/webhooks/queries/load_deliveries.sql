-- Deliveries with their bodies. $1 tenants, $2 ids. Primary keys. No body: the contact it is about was erased.
select d.id as "id!", d.event_id as "event_id!", d.type as "event_type!", d.attempts as "attempts!", d.replayed as "replayed!",
       d.created_at as "created_at!", e.body as "body?", e.traceparent as "traceparent?"
from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
cross join lateral (
    select d.id, d.event_id, d.product, d.type, d.attempts, d.replayed, d.created_at
    from webhook_deliveries d where d.tenant_id = w.tenant_id and d.id = w.id and d.status = 'pending'
    offset 0
) d
left join lateral (
    select e.body, e.traceparent from webhook_events e where e.tenant_id = w.tenant_id and e.product = d.product and e.id = d.event_id
    offset 0
) e on true
