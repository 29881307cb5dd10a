-- Which contacts of the import there are. In id order and locked, so that two imports, or an import and the fence of delivery,
-- cannot wait for each other, and suppressions written later in this transaction cannot pass a message on its way.
update import_rows r set contact_id = coalesce(known.merged_into, known.id)
from (
    select c.id, c.address, c.merged_into from contacts c
    where c.tenant_id = $1 and c.address in (select address from import_rows where contact_id = new_id)
    order by c.id
    for no key update
) known
where r.address = known.address and r.new_id <> known.id
