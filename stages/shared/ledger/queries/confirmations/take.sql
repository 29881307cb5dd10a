-- Takes confirmations that are due, and locks them: those of sign-ups, or ($3) of imports, at most $2, the oldest of a tenant first. A tenant's
-- mails of the last hour leave the rest of $1; imports get what the sign-ups that wait leave of that, and eight tenths of $1 in all: a sign-up
-- that comes after an import finds the others. A tenant that could not send the mail keeps its confirmations waiting.
-- Served by `confirmations_by_mail` and `confirmations_due_by_tenant`.
select k.tenant_id as "tenant_id!", k.contact_id as "contact_id!"
from tenants t
cross join lateral (
    select least(
               $1::bigint - count(*) - case when $3::boolean then (
                   select count(*) from (
                       select from confirmations s where s.tenant_id = t.id and not s.is_bulk and s.due_at <= now() limit $1::bigint) s
               ) else 0 end,
               case when $3 then greatest(1, $1::bigint * 4 / 5) - count(*) filter (where m.is_bulk) end
           ) as remaining
    from confirmations m
    where m.tenant_id = t.id and m.last_mail_at > now() - interval '1 hour'
) h
cross join lateral (
    select f.tenant_id, f.contact_id
    from confirmations f
    where f.tenant_id = t.id and f.is_bulk = $3 and f.due_at <= now()
    order by f.due_at
    limit greatest(0, least($2::bigint, h.remaining))
    for update skip locked
) k
where t.status = 'active' and t.paused_at is null
  and exists (select from confirmations f where f.tenant_id = t.id and f.is_bulk = $3 and f.due_at <= now())
  and exists (select from senders s join domains d on d.tenant_id = s.tenant_id and d.id = s.domain_id
              where s.tenant_id = t.id and s.is_default and s.status = 'active' and d.status in ('verified', 'degraded'))
limit $2
