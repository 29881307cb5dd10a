-- Active subscriptions with due deliveries that no other process holds, and whether the caller holds them. $1 the most rows, $2 the
-- caller. Jumps from subscription to subscription along the queue's key, so its cost depends on the number of subscriptions with a
-- backlog, not on the length of the backlogs.
with recursive heads as (
    (select q.tenant_id, q.subscription_id, q.due_at from webhook_queue q order by q.tenant_id, q.subscription_id, q.due_at limit 1)
    union all
    select n.tenant_id, n.subscription_id, n.due_at
    from heads h
    cross join lateral (
        select q.tenant_id, q.subscription_id, q.due_at
        from webhook_queue q
        where (q.tenant_id, q.subscription_id) > (h.tenant_id, h.subscription_id)
        order by q.tenant_id, q.subscription_id, q.due_at
        limit 1
    ) n
)
select h.tenant_id as "tenant_id!", h.subscription_id as "id!", l.subscription_id is not null as "is_held!"
from heads h
cross join lateral (
    select from webhook_subscriptions s where s.tenant_id = h.tenant_id and s.id = h.subscription_id and s.status = 'active' offset 0
) s
left join lateral (
    select l.subscription_id, l.holder from webhook_leases l where l.subscription_id = h.subscription_id and l.lease_until > now() offset 0
) l on true
where h.due_at <= now() and (l.holder is null or l.holder = $2)
limit $1
