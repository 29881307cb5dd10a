-- The data that the mails of these batches share. $1 tenants, $2 batches. Primary keys, and `template_versions_by_content`. Retention and
-- erasure empty subjects.
select w.tenant_id as "tenant_id!", w.id as "id!", b.kind as "kind!: MessageKind", b.variant as "variant?", nullif(c.subject, '') as "subject?",
       t.template_id as "template_id?", t.version as "template_version?", d.email as "sender_email?",
       x.traceparent as "traceparent?", x.tracestate as "tracestate?"
from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
join batches b on b.tenant_id = w.tenant_id and b.id = w.id
left join contents c on c.tenant_id = w.tenant_id and c.id = b.content_id
cross join lateral template_of_mail(w.tenant_id, b.content_id, b.campaign_id, b.variant) t
left join senders d on d.tenant_id = w.tenant_id and d.id = b.sender_id
left join traces x on x.tenant_id = w.tenant_id and x.work_id = w.id
