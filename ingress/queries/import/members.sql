-- Puts the contacts of the import into their lists and tags, which exist by now, and passes over what a contact left on the preferences page.
with named as (
    select r.contact_id, 'list' as kind, list as name from import_rows r, unnest(string_to_array(r.lists, U&'\001F')) list
    where r.lists is not null and r.contact_id is not null
    union all
    select r.contact_id, 'tag', tag from import_rows r, unnest(string_to_array(r.tags, U&'\001F')) tag
    where r.tags is not null and r.contact_id is not null
),
added as (
    insert into audience_members (tenant_id, audience_id, contact_id)
    select $1, a.id, named.contact_id from named
    join audiences a on a.tenant_id = $1 and a.kind = named.kind and a.name = named.name and a.deleted_at is null
    where not exists (
        select from topic_opt_outs d where d.tenant_id = $1 and d.contact_id = named.contact_id and d.audience_id = a.id)
    order by a.id, named.contact_id
    on conflict do nothing
    returning contact_id
),
joined as (select distinct contact_id from added)
update import_rows r set changed = true from joined
where r.contact_id = joined.contact_id and r.contact_id <> r.new_id and not r.changed
