-- Deletes attachments and skeletons of messages older than four days, of at most $1 messages. Served by messages_to_purge.
with old as (
    select tenant_id, id from messages
    where purged_at is null and created_at < now() - interval '4 days'
    order by created_at
    limit $1
    for update skip locked
), attachment as (
    delete from message_attachments a using old where a.tenant_id = old.tenant_id and a.message_id = old.id
), skeleton as (
    delete from skeletons s using old
    where s.tenant_id = old.tenant_id and s.id = 'message-' || replace(old.id::text, '-', '')
), marked as (
    update messages m set purged_at = now() from old where m.tenant_id = old.tenant_id and m.id = old.id returning 1
)
select count(*) as "purged!" from marked
