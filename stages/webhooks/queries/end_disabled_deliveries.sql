-- Ends waiting deliveries of disabled subscriptions as dead, at most $1. Returns their number. Jumps along the queue's key as
-- `due_heads.sql` does.
with recursive heads as (
    (select q.tenant_id, q.subscription_id from webhook_queue q order by q.tenant_id, q.subscription_id limit 1)
    union all
    select n.tenant_id, n.subscription_id
    from heads h
    cross join lateral (
        select q.tenant_id, q.subscription_id
        from webhook_queue q
        where (q.tenant_id, q.subscription_id) > (h.tenant_id, h.subscription_id)
        order by q.tenant_id, q.subscription_id
        limit 1
    ) n
), over as (
    select q.tenant_id, q.subscription_id, q.due_at, q.delivery_id
    from heads h
    cross join lateral (
        select from webhook_subscriptions s where s.tenant_id = h.tenant_id and s.id = h.subscription_id and s.status = 'disabled'
        offset 0
    ) s
    cross join lateral (
        select q.tenant_id, q.subscription_id, q.due_at, q.delivery_id from webhook_queue q
        where q.tenant_id = h.tenant_id and q.subscription_id = h.subscription_id
        limit $1
    ) q
    limit $1
), taken_out as (
    delete from webhook_queue q using over o
    where q.tenant_id = o.tenant_id and q.subscription_id = o.subscription_id and q.due_at = o.due_at
      and q.delivery_id = o.delivery_id
), buried as (
    update webhook_deliveries d
    set status = 'dead', next_attempt_at = null, error_code = coalesce(d.error_code, 'subscription_disabled')
    from over o
    where d.tenant_id = o.tenant_id and d.id = o.delivery_id and d.status = 'pending'
)
select count(*) as "count!" from over
