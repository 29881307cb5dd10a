-- Records the results of attempts on deliveries and queue. A result that another process recorded already, after a lost lease, is
-- left out; so is one from before a replay. $6 the attempt's number, $7 seconds until the next one, null for none, $11 the replays before it.
-- What arrived is delivered, whatever was recorded meanwhile: the delivery was ended with its subscription, or another process made the same
-- attempt, and the receiver refused what it knew. It is not tried again then: an entry for that is an orphan (`drop_orphans`).
with tried as (
    select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::timestamptz[], $5::text[], $6::int2[], $7::float8[], $8::int2[],
                         $9::text[], $10::int4[], $11::int4[])
        as u (tenant_id, subscription_id, id, due_at, status, attempt, wait_seconds, status_code, error_code, duration_ms, replayed)
), recorded as (
    update webhook_deliveries d
    set status = t.status, attempts = greatest(d.attempts, t.attempt), next_attempt_at = now() + make_interval(secs => t.wait_seconds),
        attempted_at = now(), status_code = t.status_code, error_code = t.error_code, duration_ms = t.duration_ms,
        delivered_at = case when t.status = 'delivered' then now() end
    from tried t
    where d.tenant_id = t.tenant_id and d.id = t.id and d.replayed = t.replayed
      and (t.status = 'delivered' and d.status <> 'delivered' or d.status = 'pending' and d.attempts = t.attempt - 1)
    returning d.tenant_id, d.subscription_id, d.id, d.next_attempt_at
), taken_out as (
    delete from webhook_queue q using tried t
    where q.tenant_id = t.tenant_id and q.subscription_id = t.subscription_id and q.due_at = t.due_at and q.delivery_id = t.id
)
insert into webhook_queue (tenant_id, subscription_id, due_at, delivery_id)
select tenant_id, subscription_id, next_attempt_at, id from recorded where next_attempt_at is not null
on conflict do nothing
