-- The recipients' merge data, by primary key; `place` is the position in the arrays given.
select w.place as "place!",
       c.address, c.first_name, c.last_name, c.title, c.phone, c.company, c.dot_number,
       c.timezone, c.locale, c.lifecycle_stage, fields_shown(c.tenant_id, c.fields) as "fields!: Fields"
from unnest($1::uuid[], $2::uuid[]) with ordinality as w (tenant_id, contact_id, place)
join contacts c on c.tenant_id = w.tenant_id and c.id = w.contact_id
where c.status <> 'erased'
