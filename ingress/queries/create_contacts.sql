-- Creates contacts, in the order of their addresses, so that two requests cannot wait for each other. One whose address or external_id
-- another request has just taken is left out: it is found afterwards. Answers the created ones.
-- $1 tenant, $2 [{id, address, external_id, fields, …}]: a row of `contacts` each.
insert into contacts (tenant_id, id, address, external_id, first_name, last_name, title, phone, company, dot_number, timezone, locale,
                      lifecycle_stage, fields, marketing_status, source, consent_basis, consent_at, consent_source,
                      consent_description, consent_evidence)
select $1, n.id, n.address, n.external_id, n.first_name, n.last_name, n.title, n.phone, n.company, n.dot_number, n.timezone, n.locale,
       n.lifecycle_stage, jsonb_strip_nulls(n.fields), n.marketing_status, coalesce(n.source, 'api'), n.consent_basis, n.consent_at,
       n.consent_source, n.consent_description, n.consent_evidence
from jsonb_populate_recordset(null::contacts, $2) n
order by n.address
on conflict do nothing
returning id
