-- Writes the suppressions of the import. One in force stays as it is, except that it no longer ends; one that has run out starts
-- anew. Answers how many there were not before.
with wanted as (
    select r.address, r.suppression_id, r.suppression_reason as reason from import_rows r where r.suppression_reason is not null
),
written as (
    insert into suppressions as held (tenant_id, id, address, reason, scope, source)
    select $1, suppression_id, address, reason, case when reason = 'unsubscribe' then 'marketing' else 'all' end, 'import'
    from wanted
    order by address, reason
    on conflict (tenant_id, address, reason) do update set
        created_at = case when held.expires_at <= now() then now() else held.created_at end,
        expires_at = null
        where held.expires_at is not null
    returning id
)
select count(*) from written join wanted on wanted.suppression_id = written.id
