-- Takes out the rows whose external_id another row or another contact has, or whose contact has another one. Answers them.
delete from import_rows r
using (
    select i.number,
           case when i.nth > 1 or holder.id is distinct from own.id and holder.id is not null then 'external_id_taken'
                else 'external_id_differs' end as code
    from (
        select number, address, external_id, row_number() over (partition by external_id order by number) as nth
        from import_rows where external_id is not null
    ) i
    left join contacts named on named.tenant_id = $1 and named.address = i.address
    left join contacts own on own.tenant_id = $1 and own.id = coalesce(named.merged_into, named.id)
    left join contacts holder on holder.tenant_id = $1 and holder.external_id = i.external_id
    where i.nth > 1 or holder.id is distinct from own.id and holder.id is not null or own.external_id <> i.external_id
) bad
where r.number = bad.number
returning r.number, bad.code, r.external_id
