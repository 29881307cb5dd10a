-- The mails that running campaigns of these urgencies owe these contacts, by campaign and contact: $1 tenants and $2 contacts, in pairs; $3 urgencies.
-- A campaign holds room under the frequency cap while its mail may pass the fence: it is not paused, its window is open, and it was launched
-- within the last three days. A mail does while it is queued, or put off by no more than an hour. So no other mail waits for it for ever.
-- Without such a campaign no send is looked for. Served by campaigns_by_status and sends_once_per_campaign (`offset 0`: from key to key).
with running as materialized (
    select t.tenant_id, c.id, c.month, c.urgency
    from (select distinct w.tenant_id from unnest($1::uuid[]) as w (tenant_id)) t
    cross join lateral (
        select c.id, c.month, c.urgency
        from campaigns c
        where c.tenant_id = t.tenant_id and c.status = 'sending'
          and c.urgency = any ($3::text[]) and c.classification = 'marketing' and not c.paused
          and (c.closes_at is null or c.closes_at > now()) and c.materialized_at > now() - interval '3 days'
        offset 0
    ) c
)
select w.contact_id as "contact_id!", s.id as "send_id!", r.urgency as "urgency!"
from running r
join unnest($1::uuid[], $2::uuid[]) as w (tenant_id, contact_id) on w.tenant_id = r.tenant_id
cross join lateral (
    select s.id
    from sends s
    where s.tenant_id = r.tenant_id and s.campaign_id = r.id and s.contact_id = w.contact_id and s.month = r.month
      and (s.state = 'queued' or s.state = 'deferred' and s.next_attempt_at <= now() + interval '1 hour')
    offset 0
) s
