-- Everything a message is compiled from that does not depend on its recipients. One row by primary keys.
select c.kind, c.subject, c.preheader, c.body_html, c.body_text,
       s.email as sender_email, s.name as sender_name, s.reply_to,
       coalesce(nullif(btrim(s.physical_address), ''), t.physical_address) as physical_address,
       d.domain as sending_domain,
       t.org_name as tenant_name,
       m.name as "campaign_name?"
from contents c
join tenants t on t.id = c.tenant_id
join senders s on s.tenant_id = c.tenant_id and s.id = $3
join domains d on d.tenant_id = s.tenant_id and d.id = s.domain_id
left join campaigns m on m.tenant_id = c.tenant_id and m.id = $4
where c.tenant_id = $1 and c.id = $2
