-- The mails that running campaigns of these urgencies owe these contacts, by campaign and contact: $1 tenants and $2 contacts, in pairs; $3 urgencies.
-- Which campaigns and which of their sends count, `campaigns_first_under_cap` and `is_owed_soon` say, as for the count of an audience.
-- Without such a campaign no send is looked for. Served by campaigns_by_status, sends_once_per_campaign and the key of batches (`offset 0`:
-- from key to key).
with running as materialized (
    select t.tenant_id, c.id, c.month, c.urgency
    from (select distinct w.tenant_id from unnest($1::uuid[]) as w (tenant_id)) t
    cross join lateral (select f.id, f.month, f.urgency from campaigns_first_under_cap(t.tenant_id, $3::text[]) f offset 0) c
)
select w.contact_id as "contact_id!", s.id as "send_id!", r.urgency as "urgency!"
from running r
join unnest($1::uuid[], $2::uuid[]) as w (tenant_id, contact_id) on w.tenant_id = r.tenant_id
cross join lateral (
    select s.id, s.state, s.next_attempt_at
    from sends s
    where s.tenant_id = r.tenant_id and s.campaign_id = r.id and s.contact_id = w.contact_id and s.month = r.month
      and s.state in ('queued', 'deferred')
    offset 0
) s
cross join lateral (
    select b.state, b.announce_after, b.quiet_at from batches b where b.tenant_id = r.tenant_id and b.id = batch_of(s.id) offset 0
) b
where is_owed_soon(s.state, s.next_attempt_at, b.state, b.announce_after, b.quiet_at)
