-- The templates whose mail, transactional or a sequence's, was clicked most within a window. $1 tenant, $2 from, $3 to, $4 how many.
-- Nobody counts by template what was not sent. `sequence_id` is nil for transactional mail.
select t.id, t.name, u.sequence_id as "sequence_id!", sum(u.sent)::bigint as "total!", sum(u.sent)::bigint as "sent!",
       sum(u.delivered)::bigint as "delivered!", sum(u.confirmed)::bigint as "confirmed!", 0::bigint as "failed!", 0::bigint as "unknown!", 0::bigint as "skipped!",
       sum(u.bounced)::bigint as "bounced!", sum(u.complained)::bigint as "complained!", sum(u.opened)::bigint as "opened!",
       sum(u.opened_human)::bigint as "opened_human!", sum(u.clicked)::bigint as "clicked!",
       sum(u.clicked_human)::bigint as "clicked_human!", sum(u.unsubscribed)::bigint as "unsubscribed!",
       sum(u.replied)::bigint as "replied!"
from (
    select content_id, sequence_id, sent, bounced, complained, opened, opened_human, clicked, clicked_human, unsubscribed, replied, delivered, confirmed
    from content_totals where tenant_id = $1 and hour >= $2 and hour < $3
    union all
    select content_id, sequence_id, sent, bounced, complained, opened, opened_human, clicked, clicked_human, unsubscribed, replied, delivered, confirmed
    from content_changes where tenant_id = $1 and hour >= $2 and hour < $3
) u
join lateral template_version_of($1, u.content_id) v on true
join templates t on t.tenant_id = $1 and t.id = v.template_id
group by t.id, t.name, u.sequence_id
having sum(u.sent) > 0
order by 16 desc, 14 desc, 5 desc, t.id desc, u.sequence_id desc
limit $4
