-- Puts contacts into lists and tags, and passes over what a contact left on the preferences page. Answers the contacts that joined
-- something.
-- $1 tenant; $2 audiences of the tenant, $3 contacts, in parallel.
insert into audience_members (tenant_id, audience_id, contact_id)
select distinct $1::uuid, n.audience_id, n.contact_id
from unnest($2::uuid[], $3::uuid[]) as n (audience_id, contact_id)
where not exists (
    select from topic_opt_outs d where d.tenant_id = $1 and d.contact_id = n.contact_id and d.audience_id = n.audience_id
)
order by n.audience_id, n.contact_id
on conflict do nothing
returning contact_id
