-- Deletes attachments and own skeletons of mail that was due more than four days ago, and is not open: of at most $1 messages, served by
-- messages_to_purge, and of at most $1 transactional mails with attachments, whose ids are of the time when they are due, served by the key of
-- message_attachments: their skeletons go with the attachments. What a tenant keeps of its open mail is not looked at.
with old_of as materialized (
    select t.id as tenant_id, before_open_mail(t.id, now() - interval '4 days') as before from tenants t
), message as (
    select m.tenant_id, m.id
    from old_of o
    cross join lateral (
        select m.tenant_id, m.id from messages m
        where m.tenant_id = o.tenant_id and m.purged_at is null and m.due_at < o.before
        order by m.due_at
        limit $1
        for update skip locked
    ) m
    limit $1
), transactional as (
    select a.tenant_id, a.message_id as id
    from old_of o
    cross join lateral (
        -- The first file of each mail: the limit is one of mails.
        select a.tenant_id, a.message_id from message_attachments a
        where a.tenant_id = o.tenant_id and a.message_id < first_id_at(o.before) and a.place = 0
          and (select r.kind from requests r where r.tenant_id = a.tenant_id and r.id = a.message_id) = 'transactional'
        order by a.message_id
        limit $1
    ) a
    limit $1
), old as (
    select tenant_id, id from message union all select tenant_id, id from transactional
), attachment as (
    delete from message_attachments a using old where a.tenant_id = old.tenant_id and a.message_id = old.id
), skeleton as (
    delete from skeletons s using message old
    where s.tenant_id = old.tenant_id
      and s.id in ('message-' || replace(old.id::text, '-', ''), 'message-' || replace(old.id::text, '-', '') || '-untracked')
), marked as (
    update messages m set purged_at = now() from message o where m.tenant_id = o.tenant_id and m.id = o.id
)
select count(*) as "purged!" from old
