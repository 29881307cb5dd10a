-- Their recipients, their requests, and which step they are of. $1 tenants, $2 messages, $3 sends, $4 recipients, $5 products,
-- $6 environments, $7 payloads, $8 sequences, $9 enrollments, $10 steps.
with wanted as (
    select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::jsonb[], $8::uuid[], $9::uuid[], $10::uuid[])
        as w (tenant_id, message_id, send_id, contact_id, product, environment, payload, sequence_id, enrollment_id, step_id)
), recipient as (
    insert into message_recipients (tenant_id, message_id, send_id, contact_id)
    select tenant_id, message_id, send_id, contact_id from wanted
), step as (
    insert into sequence_sends (tenant_id, send_id, sequence_id, enrollment_id, step_id)
    select tenant_id, send_id, sequence_id, enrollment_id, step_id from wanted
)
insert into requests (tenant_id, id, product, environment, kind, payload, announce_after)
select tenant_id, message_id, product, environment, 'message', payload, now() + interval '5 seconds' from wanted
