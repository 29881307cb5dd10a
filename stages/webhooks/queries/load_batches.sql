-- The data that the mails of these batches share. $1 tenants, $2 batches. Primary keys, and `template_versions_by_content`.
select w.tenant_id as "tenant_id!", w.id as "id!", b.kind as "kind!: MessageKind", b.variant as "variant?", c.subject as "subject?",
       coalesce(t.template_id, v.template_id, k.template_id) as "template_id?", t.version as "template_version?", d.email as "sender_email?",
       x.traceparent as "traceparent?", x.tracestate as "tracestate?"
from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
cross join lateral (
    select b.kind, b.variant, b.campaign_id, b.content_id, b.sender_id from batches b where b.tenant_id = w.tenant_id and b.id = w.id offset 0
) b
left join lateral (
    select c.subject from contents c where c.tenant_id = w.tenant_id and c.id = b.content_id offset 0
) c on true
left join lateral (
    select v.template_id, v.version from template_versions v
    where v.tenant_id = w.tenant_id and v.content_id = b.content_id
    order by v.template_id, v.version
    limit 1
) t on true
left join lateral (
    select v.template_id from campaign_variants v
    where v.tenant_id = w.tenant_id and v.campaign_id = b.campaign_id and v.variant = b.variant
    offset 0
) v on true
left join lateral (
    select k.template_id from campaigns k where k.tenant_id = w.tenant_id and k.id = b.campaign_id offset 0
) k on true
left join lateral (
    select s.email from senders s where s.tenant_id = w.tenant_id and s.id = b.sender_id offset 0
) d on true
left join lateral (
    select x.traceparent, x.tracestate from traces x where x.tenant_id = w.tenant_id and x.work_id = w.id offset 0
) x on true
