-- Updates known contacts. An empty cell leaves the value; an archived contact is active again, unless its row says that it is archived; an
-- opt-out is never lifted, nor is one that outlived an erased contact of the address; `pending` becomes `subscribed` only where the import
-- states that marketing is allowed and on what basis ($2), and the row does not say `pending`, which takes `subscribed` back. Consent is
-- taken as a whole, with the import as its evidence: its basis ($3), slug ($4) and description ($5). Consent of a row that is older than
-- what is known says nothing new, and that of the import alone counts where nothing is known. A row that says nothing new changes nothing.
with incoming as (
    select c.id, r.first_name, r.last_name, r.title, r.phone, r.company, r.lifecycle_stage, r.dot_number, r.timezone, r.locale,
           r.fields, coalesce(r.consent_basis, $3, c.consent_basis) as consent_basis, coalesce(r.consent_at, now()) as consent_at, r.external_id,
           c.status = 'archived' and r.status = 'active' as comes_back,
           case
               when r.unsubscribed then 'unsubscribed'
               when r.pending and c.marketing_status = 'subscribed' then 'pending'
               when $2 and not r.pending and c.marketing_status = 'pending' and not o.has_left then 'subscribed'
               else c.marketing_status
           end as marketing_status,
           case
               when $2 and not r.unsubscribed and not r.pending and c.marketing_status = 'pending' and not o.has_left then true
               when r.consent_at < c.consent_at then false
               when r.consent_at = c.consent_at or r.consent_at is null and r.consent_basis is not null
                   then r.consent_basis is not null and r.consent_basis is distinct from c.consent_basis
               when r.consent_at is not null then true
               else $3::text is not null and c.consent_basis is null and c.consent_at is null
           end as states_consent
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
        external_id = coalesce(t.external_id, c.external_id),
        first_name = coalesce(t.first_name, c.first_name),
        last_name = coalesce(t.last_name, c.last_name),
        title = coalesce(t.title, c.title),
        phone = coalesce(t.phone, c.phone),
        company = coalesce(t.company, c.company),
        lifecycle_stage = coalesce(t.lifecycle_stage, c.lifecycle_stage),
        dot_number = coalesce(t.dot_number, c.dot_number),
        timezone = coalesce(t.timezone, c.timezone),
        locale = coalesce(t.locale, c.locale),
        fields = c.fields || t.fields,
        marketing_status = t.marketing_status,
        consent_basis = case when t.states_consent then t.consent_basis else c.consent_basis end,
        consent_at = case when t.states_consent then t.consent_at else c.consent_at end,
        consent_source = case when t.states_consent then $4 else c.consent_source end,
        consent_description = case when t.states_consent then $5 else c.consent_description end,
        consent_evidence = case when t.states_consent then null else c.consent_evidence end,
        updated_at = now()
    from incoming t
    where c.tenant_id = $1 and c.id = t.id
      and (
          (t.external_id is not null and t.external_id is distinct from c.external_id)
          or (t.first_name is not null and t.first_name is distinct from c.first_name)
          or (t.last_name is not null and t.last_name is distinct from c.last_name)
          or (t.title is not null and t.title is distinct from c.title)
          or (t.phone is not null and t.phone is distinct from c.phone)
          or (t.company is not null and t.company is distinct from c.company)
          or (t.lifecycle_stage is not null and t.lifecycle_stage is distinct from c.lifecycle_stage)
          or (t.dot_number is not null and t.dot_number is distinct from c.dot_number)
          or (t.timezone is not null and t.timezone is distinct from c.timezone)
          or (t.locale is not null and t.locale is distinct from c.locale)
          or not c.fields @> t.fields
          or t.marketing_status <> c.marketing_status
          or t.states_consent
          or coalesce(t.comes_back, false)
      )
    returning c.id
)
update import_rows r set changed = true from changed where r.contact_id = changed.id
