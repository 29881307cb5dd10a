-- Takes confirmations that are due, as many as a tenant's mails of the last hour leave of $1, and locks them: at most $2. Sign-ups come
-- before what imports asked for, then the oldest. A tenant that could not send the mail keeps its confirmations waiting.
-- Two branches, each down `confirmations_due_by_tenant`: an order over both would read all that is not due yet.
select k.tenant_id as "tenant_id!", k.contact_id as "contact_id!"
from tenants t
cross join lateral (
    select f.tenant_id, f.contact_id
    from (
        select o.contact_id from (
            (select s.contact_id, false as is_bulk, s.due_at from confirmations s
             where s.tenant_id = t.id and not s.is_bulk and s.due_at <= now() order by s.due_at limit $2)
            union all
            (select i.contact_id, true, i.due_at from confirmations i
             where i.tenant_id = t.id and i.is_bulk and i.due_at <= now() order by i.due_at limit $2)
        ) o
        order by o.is_bulk, o.due_at
        limit greatest(0, least($2::bigint, $1::bigint - (
            select count(*) from confirmations m where m.tenant_id = t.id and m.last_mail_at > now() - interval '1 hour')))
    ) o
    join confirmations f on f.tenant_id = t.id and f.contact_id = o.contact_id and f.due_at <= now()
    for update of f skip locked
) k
where t.status = 'active' and t.paused_at is null
  and (exists (select from confirmations f where f.tenant_id = t.id and not f.is_bulk and f.due_at <= now())
       or exists (select from confirmations f where f.tenant_id = t.id and f.is_bulk and f.due_at <= now()))
  and exists (select from senders s join domains d on d.tenant_id = s.tenant_id and d.id = s.domain_id
              where s.tenant_id = t.id and s.is_default and s.status = 'active' and d.status in ('verified', 'degraded'))
limit $2
