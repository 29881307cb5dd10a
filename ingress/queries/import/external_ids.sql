-- The rows whose external_id another row or another contact has, or whose contact has another one. Answers them. They are taken out, but
-- for those that stop mail: of these only the address and what stops mail are left. An id that is kept by a contact which was merged into
-- the row's contact leads there already.
with looked_at as materialized (
    select i.number, i.external_id, i.stops_mail,
           case
               when i.nth > 1 or holder.id is not null and coalesce(holder.merged_into, holder.id) is distinct from own.id
                   then 'external_id_taken'
               when holder.id is null and own.external_id <> i.external_id then 'external_id_differs'
           end as code,
           holder.merged_into is not null as is_kept_elsewhere
    from (
        select number, address, external_id, unsubscribed or pending or suppression_reason is not null as stops_mail,
               row_number() over (partition by external_id order by number) as nth
        from import_rows where external_id is not null
    ) i
    left join contacts named on named.tenant_id = $1 and named.address = i.address
    -- Row security keeps a `coalesce` out of the condition of an index.
    left join contacts own on own.tenant_id = $1 and own.id = case when named.merged_into is null then named.id else named.merged_into end
    left join contacts holder on holder.tenant_id = $1 and holder.external_id = i.external_id
),
taken_out as (
    delete from import_rows r using looked_at l where r.number = l.number and l.code is not null and not l.stops_mail
),
emptied as (
    update import_rows r
    set external_id = null, first_name = null, last_name = null, title = null, phone = null, company = null, lifecycle_stage = null,
        dot_number = null, timezone = null, locale = null, fields = '{}', tags = null, lists = null, status = null,
        consent_basis = null, consent_at = null
    from looked_at l where r.number = l.number and l.code is not null and l.stops_mail
),
led_by_merge as (
    update import_rows r set external_id = null
    from looked_at l where r.number = l.number and l.code is null and l.is_kept_elsewhere
)
select number, code, external_id, stops_mail from looked_at where code is not null
