-- Stores renditions, and skeletons that only one message uses; neither of a mail whose content or attachments were erased since they were
-- read: nothing would take them back. The erasure removes what it finds once it has these rows. Existing rows stay unchanged.
-- $1 tenants, $2 sends, $3 renditions, $4 the skeleton of each that is its message's own, $5 whether the commit waits for the disk: set here,
-- as the only statement of its transaction, it spares two round trips. $6 tenants, $7 and $8 their own skeletons, $9 the messages, $10 the
-- contents of those that their callers wrote; null: it has attachments. Primary keys.
with known as materialized (
    select u.tenant_id, u.id, u.body
    from (
        select * from unnest($6::uuid[], $7::text[], $8::jsonb[], $9::uuid[], $10::uuid[]) as u (tenant_id, id, body, message_id, content_id)
        order by u.tenant_id, u.message_id
    ) u
    left join lateral (
        select true as is_known from contents c
        where c.tenant_id = u.tenant_id and c.id = u.content_id
          and (c.subject <> '' or c.body_html <> '' or c.body_text is not null)
        for share of c
    ) w on true
    left join lateral (
        select true as is_known from message_attachments a
        where u.content_id is null and a.tenant_id = u.tenant_id and a.message_id = u.message_id and a.place = 0
        for share of a
    ) f on true
    where w.is_known or f.is_known
), own_skeletons as (
    insert into skeletons (tenant_id, id, body)
    select tenant_id, id, body from known
    order by 1, 2
    on conflict do nothing
)
insert into renditions (tenant_id, send_id, rendered)
select w.tenant_id, w.send_id, w.rendered
from unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::text[]) as w (tenant_id, send_id, rendered, own_skeleton)
where set_config('synchronous_commit', $5, true) = $5
  and (w.own_skeleton is null or exists (select from known k where k.tenant_id = w.tenant_id and k.id = w.own_skeleton))
order by 1, 2
on conflict do nothing
