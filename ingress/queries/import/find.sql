-- Which contacts of the import there are: of a merged contact the one that it is a part of. Both are locked, in id order, so that two
-- imports, or an import and the fence of delivery, cannot wait for each other, and suppressions written later in this transaction cannot
-- pass a message on its way. A row whose contact was merged while this waited is left for the next look.
with known as materialized (
    select c.id, c.address, c.merged_into from contacts c
    where c.tenant_id = $1 and c.address in (
        select r.address from import_rows r where r.contact_id = r.new_id
        union all
        select s.address from contacts m
        join contacts s on s.tenant_id = $1 and s.id = m.merged_into
        where m.tenant_id = $1 and m.merged_into is not null
          and m.address in (select r.address from import_rows r where r.contact_id = r.new_id)
    )
    order by c.id
    for no key update
)
update import_rows r set contact_id = coalesce(known.merged_into, known.id), is_merged = known.merged_into is not null
from known
where r.address = known.address and r.new_id <> known.id
  and (known.merged_into is null or known.merged_into in (select s.id from known s where s.merged_into is null))
