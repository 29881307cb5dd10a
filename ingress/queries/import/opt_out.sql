-- Applies the opt-outs of known contacts, and nothing else of their rows: for imports that leave known contacts as they are.
with left_now as (
    update contacts c set marketing_status = 'unsubscribed', updated_at = now()
    from import_rows r
    where c.tenant_id = $1 and c.id = r.contact_id and r.contact_id <> r.new_id and r.unsubscribed
      and c.marketing_status <> 'unsubscribed'
    returning c.id
)
update import_rows r set changed = true from left_now where r.contact_id = left_now.id
