-- Contacts as callers see them, by id, newest first: each with its audiences and the gravest live suppression of its address.
-- $1 tenant, $2 ids.
with page as (
    select c.* from contacts c
    where c.tenant_id = $1 and c.status <> 'erased'
      and c.id = any ($2)
)
select c.id as "contact_id!", c.address as "email!", c.first_name, c.last_name, c.title, c.phone, c.company, c.dot_number,
       c.fields as "fields!", coalesce(membership.tags, '[]') as "tags!", coalesce(membership.lists, '[]') as "lists!",
       c.timezone, c.locale, c.lifecycle_stage, c.status as "status!", c.marketing_status as "marketing_status!",
       held.suppression, c.source,
       jsonb_build_object(
           'basis', c.consent_basis,
           'at', to_char(c.consent_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
           'source', c.consent_source,
           'description', c.consent_description
       ) as "consent!",
       c.created_at as "created_at!", c.updated_at as "updated_at!"
from page c
left join lateral (
    select jsonb_agg(jsonb_build_object('tag_id', a.id, 'name', a.name) order by a.name) filter (where a.kind = 'tag') as tags,
           jsonb_agg(jsonb_build_object('list_id', a.id, 'name', a.name) order by a.name) filter (where a.kind = 'list') as lists
    from audience_members m
    join audiences a on a.tenant_id = m.tenant_id and a.id = m.audience_id
    where m.tenant_id = $1 and m.contact_id = c.id
) membership on true
left join lateral (
    select jsonb_build_object(
        'reason', s.reason,
        'scope', s.scope,
        'since', to_char(s.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
    ) as suppression
    from suppressions s
    where s.tenant_id = $1 and s.address = c.address and (s.expires_at is null or s.expires_at > now())
    order by (s.scope = 'all') desc,
             array_position(array['hard_bounce', 'complaint', 'invalid', 'manual', 'import', 'unsubscribe'], s.reason)
    limit 1
) held on true
order by c.created_at desc, c.id desc
