-- Sets one field of each contact; they are locked. $1 tenants, $2 contacts, $3 fields, $4 values, $5 true if it is a column of
-- the contact. A field that was removed is left alone: the caller holds the tenants' fields. Answers the changed contacts.
update contacts c
set first_name = case when w.field = 'first_name' and w.own then w.value #>> '{}' else c.first_name end,
    last_name = case when w.field = 'last_name' and w.own then w.value #>> '{}' else c.last_name end,
    title = case when w.field = 'title' and w.own then w.value #>> '{}' else c.title end,
    phone = case when w.field = 'phone' and w.own then w.value #>> '{}' else c.phone end,
    company = case when w.field = 'company' and w.own then w.value #>> '{}' else c.company end,
    lifecycle_stage = case when w.field = 'lifecycle_stage' and w.own then w.value #>> '{}' else c.lifecycle_stage end,
    fields = case when w.own then c.fields else jsonb_strip_nulls(c.fields || jsonb_build_object(w.field, w.value)) end,
    updated_at = now()
from unnest($1::uuid[], $2::uuid[], $3::text[], $4::jsonb[], $5::bool[]) as w (tenant_id, id, field, value, own)
where c.tenant_id = w.tenant_id and c.id = w.id
  and (w.own or exists (select from fields f where f.tenant_id = w.tenant_id and f.key = w.field))
  and case
          when not w.own then coalesce(c.fields -> w.field, 'null') <> w.value
          else case w.field
                   when 'first_name' then c.first_name
                   when 'last_name' then c.last_name
                   when 'title' then c.title
                   when 'phone' then c.phone
                   when 'company' then c.company
                   else c.lifecycle_stage
               end is distinct from w.value #>> '{}'
      end
returning c.tenant_id, c.id
