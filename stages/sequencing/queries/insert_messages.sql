-- One-off messages with their contents. $1 tenants, $2 messages (each also its content's id), $3 senders, $4 subjects, $5 HTML,
-- $6 text. They are not metered: the hourly limit is about what callers post.
with wanted as (
    select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[])
        as w (tenant_id, id, sender_id, subject, html, text)
), content as (
    insert into contents (tenant_id, id, kind, subject, body_html, body_text)
    select tenant_id, id, 'one_off', subject, html, text from wanted
)
insert into messages (tenant_id, id, sender_id, content_id, is_metered)
select tenant_id, id, sender_id, id, false from wanted
