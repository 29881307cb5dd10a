-- Takes confirmations that are due, the oldest of each tenant first, as many as its mails of the last hour leave of $1, and locks them:
-- at most $2. A tenant that could not send the mail keeps its confirmations waiting.
select k.tenant_id as "tenant_id!", k.contact_id as "contact_id!"
from tenants t
cross join lateral (
    select f.tenant_id, f.contact_id
    from confirmations f
    where f.tenant_id = t.id and f.due_at <= now()
    order by f.due_at
    limit greatest(0, least($2::bigint, $1::bigint - (
        select count(*) from confirmations m where m.tenant_id = t.id and m.last_mail_at > now() - interval '1 hour')))
    for update skip locked
) k
where t.status = 'active' and t.paused_at is null
  and exists (select from confirmations f where f.tenant_id = t.id and f.due_at <= now())
  and exists (select from senders s join domains d on d.tenant_id = s.tenant_id and d.id = s.domain_id
              where s.tenant_id = t.id and s.is_default and s.status = 'active' and d.status in ('verified', 'degraded'))
limit $2
