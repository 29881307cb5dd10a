-- What is held about a person beside the contact itself, one page or slice in the order of kind and id. $1 tenant, $2 the contact and those that
-- were merged into it, $3 their addresses, $4 and $5 the last kind and id of the page before, $6 how many.
-- The data of a request is left out: a reset link or a code in it is as good as a password.
-- Each kind is found by its index over the contact or the address; mail of campaigns as erasure finds it, campaign by campaign. A mail has
-- all its events: of each kind so many are stored (`facts::STORED_MAX`).
with own as (
    select s.id, s.month, s.campaign_id, s.state, s.reason, s.delivered_at, s.bounced_at, s.complained_at, s.opened_at, s.clicked_at,
           s.replied_at, s.unsubscribed_at, s.response
    from sends s
    where s.tenant_id = $1 and s.contact_id = any ($2) and s.campaign_id is null
      and ($4 < 'send' or $4 = 'send' and s.id > $5)
    union all
    select s.*
    from campaigns c
    cross join lateral (
        select s.id, s.month, s.campaign_id, s.state, s.reason, s.delivered_at, s.bounced_at, s.complained_at, s.opened_at,
               s.clicked_at, s.replied_at, s.unsubscribed_at, s.response
        from sends s
        where s.tenant_id = $1 and s.campaign_id = c.id and s.contact_id = any ($2) and s.month = c.month
        offset 0
    ) s
    where c.tenant_id = $1 and ($4 < 'send' or $4 = 'send' and s.id > $5)
),
found as (
    select 'confirmation' as kind, f.contact_id as id, to_jsonb(f) - 'tenant_id' as data
    from confirmations f
    where f.tenant_id = $1 and f.contact_id = any ($2) and ('confirmation', f.contact_id) > ($4, $5)
    union all
    select 'enrollment', e.id, to_jsonb(e) - '{tenant_id,claim_token}'::text[]
    from enrollments e
    where e.tenant_id = $1 and e.contact_id = any ($2) and ('enrollment', e.id) > ($4, $5)
    union all
    select 'message', m.id,
           jsonb_build_object('subject', t.subject, 'created_at', m.created_at, 'due_at', m.due_at, 'names', r.names)
    from (
        select r.message_id, array_remove(array_agg(r.name order by r.send_id), null) as names
        from message_recipients r where r.tenant_id = $1 and r.contact_id = any ($2) group by r.message_id
    ) r
    join messages m on m.tenant_id = $1 and m.id = r.message_id
    join contents t on t.tenant_id = m.tenant_id and t.id = m.content_id
    where ('message', m.id) > ($4, $5)
    union all
    select 'outcome', o.id, to_jsonb(o) - 'tenant_id' from outcomes o
    where o.tenant_id = $1 and o.contact_id = any ($2) and ('outcome', o.id) > ($4, $5)
    union all
    select 'product_event', p.id, to_jsonb(p) - 'tenant_id' from product_events p
    where p.tenant_id = $1 and p.contact_id = any ($2) and ('product_event', p.id) > ($4, $5)
    union all
    select 'request', r.id, jsonb_build_object('received_at', r.received_at, 'payload', r.payload - 'data') from requests r
    where r.tenant_id = $1 and r.id in (select requests_to($1, $3)) and ('request', r.id) > ($4, $5)
    union all
    select 'send', w.id, to_jsonb(w) - 'month' from own w
    order by 1, 2
    limit $6
)
select f.kind as "kind!", f.id as "id!",
       f.data || case when f.kind = 'send' then jsonb_build_object('events', array(
           select jsonb_build_object('type', e.type, 'occurred_at', e.occurred_at, 'detail', e.detail)
           from send_facts e
           where e.tenant_id = $1 and e.send_id = f.id and e.month = (select w.month from own w where w.id = f.id)
           order by e.occurred_at, e.id
       )) else '{}' end as "data!"
from found f
order by f.kind, f.id
