-- Locks the recipients of these sends, in id order, as every writer of suppressions does: a fence and a suppression cannot pass
-- each other. $1 tenants, $2 sends, $3 months.
select 1 as one from contacts c
join (select distinct s.tenant_id, s.contact_id
      from unnest($1::uuid[], $2::uuid[], $3::date[]) as w (tenant_id, id, month)
      join sends s on s.tenant_id = w.tenant_id and s.id = w.id and s.month = w.month) as who
  on who.tenant_id = c.tenant_id and who.contact_id = c.id
order by c.id for no key update of c
