-- When each tenant's `notify_owner` mails of the last hour were made, the newest $2, oldest first. They are the messages that the limit
-- on one-off mail does not count. $1 tenants. Served by `messages_by_time`.
select w.id as "tenant_id!", array(
           select m.created_at from (
               select m.created_at from messages m
               where m.tenant_id = w.id and not m.is_metered
                 and m.created_at between statement_timestamp() - interval '1 hour' and statement_timestamp()
               order by m.created_at desc
               limit $2
           ) m
           order by m.created_at
       ) as "used!"
from unnest($1::uuid[]) as w (id)
