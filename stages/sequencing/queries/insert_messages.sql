-- One-off messages with their contents, recipients and requests, and which step they are of. $1 tenants, $2 messages (each also its content's
-- id), $3 senders, $4 subjects, $5 HTML, $6 text, $7 sends, $8 recipients, $9 products, $10 environments, $11 payloads, $12 sequences,
-- $13 enrollments, $14 steps. They are not metered: the hourly limit is about what callers post.
with wanted as (
    select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::uuid[], $8::uuid[], $9::text[],
                         $10::text[], $11::jsonb[], $12::uuid[], $13::uuid[], $14::uuid[])
        as w (tenant_id, id, sender_id, subject, html, text, send_id, contact_id, product, environment, payload, sequence_id, enrollment_id,
              step_id)
), content as (
    insert into contents (tenant_id, id, kind, subject, body_html, body_text)
    select tenant_id, id, 'one_off', subject, html, text from wanted
), message as (
    insert into messages (tenant_id, id, sender_id, content_id, is_metered)
    select tenant_id, id, sender_id, id, false from wanted
), recipient as (
    insert into message_recipients (tenant_id, message_id, send_id, contact_id)
    select tenant_id, id, send_id, contact_id from wanted
), step as (
    insert into sequence_sends (tenant_id, send_id, sequence_id, enrollment_id, step_id)
    select tenant_id, send_id, sequence_id, enrollment_id, step_id from wanted
)
insert into requests (tenant_id, id, product, environment, kind, payload, announce_after)
select tenant_id, id, product, environment, 'message', payload, now() + interval '5 seconds' from wanted
