-- Gives contacts new values: of each, the columns that are named, and fields that are merged into what it has. A contact that has the
-- values already stays untouched. One that is known from mail only, and of whose consent something is stated now, even what it is already, is
-- the product's from now on: no later mail subscribes it (`is_known_from_mail`). Answers the changed ones.
-- $1 tenant, $2 [{id, columns, fields}]. The caller holds the locks.
update contacts c set
    external_id = w.external_id, first_name = w.first_name, last_name = w.last_name, title = w.title, phone = w.phone,
    company = w.company, dot_number = w.dot_number, timezone = w.timezone, locale = w.locale, lifecycle_stage = w.lifecycle_stage,
    fields = w.fields, status = w.status, marketing_status = w.marketing_status, source = w.source,
    consent_basis = w.consent_basis, consent_at = w.consent_at, consent_source = w.consent_source,
    consent_description = w.consent_description, consent_evidence = w.consent_evidence, updated_at = now()
from jsonb_to_recordset($2) as v (id uuid, columns jsonb, fields jsonb)
join contacts b on b.tenant_id = $1 and b.id = v.id
cross join lateral jsonb_populate_record(
    b,
    case when v.columns ? 'marketing_status' and is_known_from_mail(b.source) then '{"source": "api"}'::jsonb else '{}' end
        || v.columns || jsonb_build_object('fields', jsonb_strip_nulls(b.fields || v.fields))
) w
where c.tenant_id = $1 and c.id = v.id and w is distinct from b
returning c.id
