-- The batches and sends of these requests. A small batch is announced now, in the priority lane; one of
-- more than $9 takes the bulk lane, as does one of a large array ($11), and waits there for dispatch. $1 tenants, $2 requests (each also the id of
-- its first send; the others are copies), $3 batches, $4 months, $5 contacts, $6 contents, $7 senders, $8 seconds until it is announced
-- again, $10 sends, $12 the most batches of a tenant under way in the priority lane: scheduled mail ($13) that would be more takes the bulk
-- lane, too, so that ten thousand mails that are due at once delay no password reset of others. Served by `batches_open`.
-- Mail from a template of another type than transactional is marketing (`classification_of`). The product that sends it states that the contact
-- may be written to, as when it enrolls one: a contact known from mail only is subscribed, unless it was asked to confirm, or the recipient of
-- its address has left. Of the recipient of a copy it states nothing.
-- Answers the small batches, with a row for the eligibility of each of their contacts. The statement reads contacts as they were before it; what it
-- has just subscribed is added. A batch whose contacts were all erased meanwhile is left out: the sweep announces it.
with wanted as (
    select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::date[], $5::uuid[], $6::uuid[], $7::uuid[], $10::uuid[], $11::boolean[], $13::boolean[])
        as w (tenant_id, request_id, batch_id, month, contact_id, content_id, sender_id, send_id, is_bulk, is_scheduled)
), counted as (
    select w.*, classification_of(c.kind) as classification
    from (
        select tenant_id, batch_id, month, content_id, sender_id, count(*)::integer as size, count(*) <= $9::bigint and not bool_or(is_bulk) as is_small,
               bool_or(is_scheduled) as is_scheduled, array_agg(send_id) as send_ids, array_agg(contact_id) as contact_ids
        from wanted
        group by tenant_id, batch_id, month, content_id, sender_id
    ) w
    left join contents c on c.tenant_id = w.tenant_id and c.id = w.content_id
), lane as materialized (
    select t.tenant_id, t.batches + o.batches <= $12::bigint as has_capacity
    from (select tenant_id, count(*) as batches from counted where is_small and is_scheduled group by tenant_id) t
    cross join lateral (
        select count(*) as batches
        from (
            select b.id from batches b
            where b.lane = 'priority' and b.state = 'announced' and b.tenant_id = t.tenant_id
              and not is_set_aside(b.announce_after, b.quiet_at)
            order by b.id desc
            limit $12
        ) b
    ) o
), placed as (
    select n.*, n.is_small and coalesce(l.has_capacity, true) as is_prompt
    from counted n
    left join lane l on l.tenant_id = n.tenant_id and n.is_scheduled
), subscribed as (
    -- Locked in id order, like everywhere in the ledger.
    select c.tenant_id, c.id
    from wanted w
    join counted n on n.tenant_id = w.tenant_id and n.batch_id = w.batch_id
    join contacts c on c.tenant_id = w.tenant_id and c.id = w.contact_id
    where n.classification = 'marketing' and w.send_id = w.request_id
      and exists (select from unstated_consent(c))
    order by c.id, c.tenant_id
    for no key update of c
), consent as (
    update contacts c
    set marketing_status = 'subscribed', updated_at = now()
    from subscribed s
    where c.tenant_id = s.tenant_id and c.id = s.id and c.marketing_status = 'pending'
    returning c.id
), batch as (
    insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, state, announce_after,
                         announcement, size, queued)
    select tenant_id, batch_id, month, 'transactional', case when is_prompt then 'priority' else 'bulk' end, classification,
           content_id, sender_id, case when is_prompt then 'announced' else 'waiting' end,
           case when is_prompt then now() + make_interval(secs => $8) end, is_prompt::integer, size, size
    from placed
), send as (
    insert into sends (tenant_id, id, month, request_id, contact_id)
    select tenant_id, send_id, month, request_id, contact_id from wanted
)
select n.tenant_id as "tenant_id!", n.batch_id as "batch_id!", n.content_id as "content_id!", n.sender_id as "sender_id!",
       n.classification as "classification!: Classification", n.send_ids as "send_ids!", n.contact_ids as "contact_ids!",
       e.contact_id as "contact_id!", e.contact_active as "contact_active!",
       case when e.contact_id in (select id from consent) then 'subscribed' else e.marketing_status end as "marketing_status!",
       e.hard_bounced as "hard_bounced!", e.complained as "complained!", e.unsubscribed as "unsubscribed!", e.invalid as "invalid!",
       e.suppressed_all as "suppressed_all!", e.suppressed_marketing as "suppressed_marketing!", e.cap_left, e.timezone
from placed n
cross join lateral recipient_eligibility(n.tenant_id, n.contact_ids) e
where n.is_prompt
