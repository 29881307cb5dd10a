-- Facts about sends, with the send, its recipient and its place in a sequence. $1 tenants, $2 sends, $3 facts, $4 months. Each is
-- looked up by primary key, in the order keys are known.
select w.tenant_id as "tenant_id!", w.send_id as "send_id!", w.id as "id!", e.type as "fact_type!", e.occurred_at as "occurred_at!",
       e.recorded_at as "recorded_at!", e.detail as "detail!", s.campaign_id as "campaign_id?", s.contact_id as "contact_id!",
       s.provider as "provider?", s.provider_message_id as "provider_message_id?", s.opened_at as "opened_at?",
       s.clicked_at as "clicked_at?", c.address as "address?", q.sequence_id as "sequence_id?",
       q.enrollment_id as "enrollment_id?", q.step_id as "step_id?"
from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::date[]) as w (tenant_id, send_id, id, month)
cross join lateral (
    select e.type, e.occurred_at, e.recorded_at, e.detail
    from events e where e.tenant_id = w.tenant_id and e.send_id = w.send_id and e.id = w.id and e.month = w.month
    offset 0
) e
cross join lateral (
    select s.campaign_id, s.contact_id, s.provider, s.provider_message_id, s.opened_at, s.clicked_at
    from sends s where s.tenant_id = w.tenant_id and s.id = w.send_id and s.month = w.month
    offset 0
) s
left join lateral (
    select c.address from contacts c where c.tenant_id = w.tenant_id and c.id = s.contact_id and c.status <> 'erased'
    offset 0
) c on true
left join lateral (
    select q.sequence_id, q.enrollment_id, q.step_id from sequence_sends q where q.tenant_id = w.tenant_id and q.send_id = w.send_id
    offset 0
) q on true
