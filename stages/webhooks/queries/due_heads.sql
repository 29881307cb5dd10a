-- Active subscriptions with something due that nobody else holds. $1 how many at most, $2 who asks: whether he holds it is answered. Jumps from subscription to subscription along the queue's key, so it
-- costs as much as there are subscriptions with a backlog, however long the backlogs are.
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
