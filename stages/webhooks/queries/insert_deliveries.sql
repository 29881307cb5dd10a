-- Inserts deliveries that do not exist yet, and their queue entries. Returns the new ones. In the order of ids, as replays do.
with made as (
    insert into webhook_deliveries (tenant_id, id, subscription_id, product, event_id, type, next_attempt_at)
    select u.*, now() from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::uuid[], $6::text[]) as u
    order by 1, 2
    on conflict do nothing
    returning tenant_id, subscription_id, id, next_attempt_at
)
insert into webhook_queue (tenant_id, subscription_id, due_at, delivery_id)
select tenant_id, subscription_id, next_attempt_at, id from made
returning delivery_id, due_at
