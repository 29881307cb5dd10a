-- Enrolls contacts, with the columns of the new enrollments as arrays. Each is checked: a contact that may not be mailed any more leaves at
-- once, and not only when the first step is due. Answers the enrollments that were made.
with made as (
    insert into enrollments (tenant_id, id, sequence_id, contact_id, product, next_step, next_action_at, event_id, is_parallel,
                             started_at)
    select w.tenant_id, w.id, w.sequence_id, w.contact_id, w.product, w.next_step, w.next_action_at, w.event_id, w.is_parallel, w.started_at
    from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::smallint[], $7::timestamptz[], $8::uuid[], $9::bool[],
                $10::timestamptz[])
        as w (tenant_id, id, sequence_id, contact_id, product, next_step, next_action_at, event_id, is_parallel, started_at)
    on conflict do nothing
    returning tenant_id, id, contact_id
), checked as (
    insert into enrollment_checks (tenant_id, contact_id) select tenant_id, contact_id from made
)
select id as "id!" from made
