-- Takes the leases on these subscriptions that no other process holds, and returns their targets. $1 tenants, $2 ids,
-- $3 the holder, $4 for how many seconds.
with wanted as (
    select s.tenant_id, s.id, s.status, s.url, s.secret, s.previous_secret, s.previous_until, s.failing_since
    from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
    join webhook_subscriptions s on s.tenant_id = w.tenant_id and s.id = w.id
    where s.status = 'active'
    order by s.id
), taken as (
    insert into webhook_leases as l (subscription_id, holder, lease_until)
    select id, $3, clock_timestamp() + make_interval(secs => $4) from wanted
    on conflict (subscription_id) do update set holder = excluded.holder, lease_until = excluded.lease_until
    where l.lease_until < clock_timestamp() or l.holder = excluded.holder
    returning l.subscription_id
)
select w.tenant_id, w.id, w.status as "status: SubscriptionStatus", w.url, w.secret, w.previous_secret, w.previous_until, w.failing_since
from wanted w join taken t on t.subscription_id = w.id
