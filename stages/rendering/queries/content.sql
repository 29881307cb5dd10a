-- All inputs of a compiled message that do not depend on its recipients. One row by primary keys, and the tenant's fields.
-- The length of an attachment is read off the pointer to the stored value: nothing is loaded for it.
-- $1 tenant, $2 content, $3 sender, $4 campaign, $5 one-off message, $6 the mail whose attachments these are.
select c.kind, c.subject, c.preheader, c.body_html, c.body_text,
       s.email as sender_email, s.name as sender_name, coalesce(o.reply_to, s.reply_to) as reply_to,
       postal_address(s.physical_address, t.physical_address) as physical_address,
       d.domain as sending_domain,
       -- The domain of tracking links: the one the tenant has chosen, else the sender's own. None unless the last check of that domain
       -- found its tracking host. The sandbox has none: its domain may be another tenant's in production, who owns the host.
       (
           select k.domain
           from domains k
           where k.tenant_id = $1 and k.id = coalesce(t.tracking_domain_id, d.id) and k.status in ('verified', 'degraded')
             and t.environment = 'production'
             and exists (
                 select from jsonb_array_elements(case jsonb_typeof(k.records) when 'array' then k.records else '[]' end) r
                 where r ->> 'purpose' = 'tracking' and r ->> 'host' = 'link.' || k.domain and r -> 'valid' = 'true'
             )
       ) as tracking_domain,
       t.org_name as tenant_name,
       m.name as "campaign_name?",
       $5::uuid is null or o.id is not null as "is_known!",
       (
           select jsonb_object_agg(f.key, f.fallback) from fields f where f.tenant_id = $1 and f.fallback is not null
       ) as "fallbacks: Json<HashMap<String, String>>",
       array(
           select jsonb_build_object('filename', a.filename, 'media_type', a.media_type, 'content_id', a.content_id,
                                      'bytes', octet_length(a.encoded))
           from message_attachments a
           where a.tenant_id = $1 and a.message_id = $6
           order by a.place
       ) as "attachments!: Vec<Json<Attached>>"
from contents c
join tenants t on t.id = c.tenant_id
join senders s on s.tenant_id = c.tenant_id and s.id = $3
join domains d on d.tenant_id = s.tenant_id and d.id = s.domain_id
left join campaigns m on m.tenant_id = c.tenant_id and m.id = $4
left join messages o on o.tenant_id = c.tenant_id and o.id = $5
where c.tenant_id = $1 and c.id = $2
