-- Creates the contacts that are not there: nobody else can have met one yet, so it needs no lock. One that a concurrent request has
-- just made is found afterwards. Whose recipient unsubscribed is unsubscribed, as the contact was that was erased. Answers how many were
-- made.
insert into contacts (tenant_id, id, address, first_name, last_name, title, phone, company, lifecycle_stage, dot_number, timezone,
                      locale, fields, marketing_status, source, consent_basis, consent_at, consent_source, consent_description,
                      external_id, status)
select $1, r.new_id, r.address, r.first_name, r.last_name, r.title, r.phone, r.company, r.lifecycle_stage, r.dot_number, r.timezone,
       r.locale, r.fields, case when r.unsubscribed or exists (select from own_opt_outs($1, r.address)) then 'unsubscribed'
                          when r.pending then 'pending' else $2 end, $3,
       coalesce(r.consent_basis, $4), coalesce(r.consent_at, case when coalesce(r.consent_basis, $4) is not null then now() end),
       case when coalesce(r.consent_basis, $4, $5) is not null then $3 end, $5,
       r.external_id, coalesce(r.status, 'active')
from import_rows r
where r.contact_id = r.new_id
order by r.address
on conflict (tenant_id, address) do nothing
