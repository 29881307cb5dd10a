-- Creates the contacts that are not there: nobody else can have met one yet, so it needs no lock. One that a concurrent request has
-- just made is found afterwards. Whose recipient unsubscribed is unsubscribed, as the contact was that was erased. A bad row,
-- of which only what stops mail counts (without a status), makes a contact that has not agreed yet. Answers how many were made.
insert into contacts (tenant_id, id, address, first_name, last_name, title, phone, company, lifecycle_stage, dot_number, timezone,
                      locale, fields, marketing_status, source, consent_basis, consent_at, consent_source, consent_description,
                      external_id, status)
select $1, r.new_id, r.address, r.first_name, r.last_name, r.title, r.phone, r.company, r.lifecycle_stage, r.dot_number, r.timezone,
       r.locale, r.fields, case when r.unsubscribed or exists (select from own_opt_outs($1, r.address)) then 'unsubscribed'
                          when r.pending or r.status is null then 'pending' else $2 end, $3,
       o.basis, coalesce(r.consent_at, case when o.basis is not null then now() end),
       case when coalesce(o.basis, o.description) is not null then $3 end, o.description,
       r.external_id, coalesce(r.status, 'active')
from import_rows r
-- The consent that a row states, or the import for it.
cross join lateral (
    select case when r.status is not null then coalesce(r.consent_basis, $4) end as basis,
           case when r.status is not null then $5::text end as description
) o
where r.contact_id = r.new_id
order by r.address
on conflict (tenant_id, address) do nothing
