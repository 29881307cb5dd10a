-- Updates known contacts. An empty cell leaves the value; an archived contact is active again, unless its row says that it is archived; an
-- opt-out is never lifted, nor is one that outlived an erased contact of the address; `pending` becomes `subscribed` only where the import
-- states that marketing is allowed and on what basis ($2), and the row does not say `pending`, which takes `subscribed` back. Consent is
-- taken as a whole, with the import as its evidence: its basis ($3), slug ($4) and description ($5). Consent of a row that is older than
-- what is known says nothing new, and that of the import alone counts where nothing is known. A row that says nothing new changes nothing.
-- A bad one, of which only what stops mail counts (without a status), states no consent. A contact that is known from mail only and is
-- `pending` by its row, or by the import ($6), has the import as its source from now on: no later mail subscribes it (`is_known_from_mail`).
-- The contacts are locked (`find.sql`): what an empty cell leaves is the value that is read here.
with incoming as (
    select c.id, coalesce(r.external_id, c.external_id) as external_id, coalesce(r.first_name, c.first_name) as first_name,
           coalesce(r.last_name, c.last_name) as last_name, coalesce(r.title, c.title) as title, coalesce(r.phone, c.phone) as phone,
           coalesce(r.company, c.company) as company, coalesce(r.lifecycle_stage, c.lifecycle_stage) as lifecycle_stage,
           coalesce(r.dot_number, c.dot_number) as dot_number, coalesce(r.timezone, c.timezone) as timezone,
           coalesce(r.locale, c.locale) as locale, r.fields,
           coalesce(r.consent_basis, $3, c.consent_basis) as consent_basis, coalesce(r.consent_at, now()) as consent_at,
           c.status = 'archived' and r.status = 'active' as comes_back,
           case
               when r.unsubscribed then 'unsubscribed'
               when r.pending and c.marketing_status = 'subscribed' then 'pending'
               when $2 and r.status is not null and not r.pending and c.marketing_status = 'pending' and not o.has_left
                   then 'subscribed'
               else c.marketing_status
           end as marketing_status,
           case
               when r.status is null then false
               when $2 and not r.unsubscribed and not r.pending and c.marketing_status = 'pending' and not o.has_left then true
               when r.consent_at < c.consent_at then false
               when r.consent_at = c.consent_at or r.consent_at is null and r.consent_basis is not null
                   then r.consent_basis is not null and r.consent_basis is distinct from c.consent_basis
               when r.consent_at is not null then true
               else $3::text is not null and c.consent_basis is null and c.consent_at is null
           end as states_consent,
           case when (r.pending or $6) and is_known_from_mail(c.source) then $4 else c.source end as source
    from import_rows r
    join contacts c on c.tenant_id = $1 and c.id = r.contact_id
    cross join lateral (
        select c.marketing_status = 'pending' and exists (select from own_opt_outs($1, c.address)) as has_left
    ) o
    where r.contact_id <> r.new_id and not r.is_folded
),
changed as (
    update contacts c set
        status = case when t.comes_back then 'active' else c.status end,
        external_id = t.external_id, first_name = t.first_name, last_name = t.last_name, title = t.title, phone = t.phone,
        company = t.company, lifecycle_stage = t.lifecycle_stage, dot_number = t.dot_number, timezone = t.timezone, locale = t.locale,
        fields = c.fields || t.fields,
        marketing_status = t.marketing_status, source = t.source,
        consent_basis = case when t.states_consent then t.consent_basis else c.consent_basis end,
        consent_at = case when t.states_consent then t.consent_at else c.consent_at end,
        consent_source = case when t.states_consent then $4 else c.consent_source end,
        consent_description = case when t.states_consent then $5 else c.consent_description end,
        consent_evidence = case when t.states_consent then null else c.consent_evidence end,
        updated_at = now()
    from incoming t
    where c.tenant_id = $1 and c.id = t.id
      and (
          (t.external_id, t.first_name, t.last_name, t.title, t.phone, t.company, t.lifecycle_stage, t.dot_number, t.timezone, t.locale)
              is distinct from
          (c.external_id, c.first_name, c.last_name, c.title, c.phone, c.company, c.lifecycle_stage, c.dot_number, c.timezone, c.locale)
          or c.fields || t.fields <> c.fields
          or t.marketing_status <> c.marketing_status
          or t.states_consent
          or t.source is distinct from c.source
          or coalesce(t.comes_back, false)
      )
    returning c.id
)
update import_rows r set changed = true from changed where r.contact_id = changed.id
