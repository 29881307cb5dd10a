-- Replays deliveries: creates missing ones, restarts those that have ended, and leaves pending ones as they are. Returns how many
-- were started. In the order of ids, as the fan-out inserts them.
with asked as (
    select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::uuid[], $6::text[])
        as u (tenant_id, id, subscription_id, product, event_id, type)
), made as (
    insert into webhook_deliveries as d (tenant_id, id, subscription_id, product, event_id, type, next_attempt_at, replayed)
    select a.*, now(), 1 from asked a order by a.tenant_id, a.id
    on conflict (tenant_id, id) do update
    set status = 'pending', attempts = 0, next_attempt_at = excluded.next_attempt_at, error_code = null, status_code = null,
        duration_ms = null, delivered_at = null, replayed = d.replayed + 1
    where d.status <> 'pending'
    returning d.tenant_id, d.subscription_id, d.id, d.next_attempt_at
), queued as (
    insert into webhook_queue (tenant_id, subscription_id, due_at, delivery_id)
    select tenant_id, subscription_id, next_attempt_at, id from made
    on conflict do nothing
)
select count(*) as "count!" from made
