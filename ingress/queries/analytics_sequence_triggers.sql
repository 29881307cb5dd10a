-- What became of sequences' mail within a window, by what enrolled the contacts. $1 tenant, $2 from, $3 to. Ranges of keys.
select s.trigger_type, sum(u.sent)::bigint as "total!", sum(u.sent)::bigint as "sent!", sum(u.delivered)::bigint as "delivered!", sum(u.confirmed)::bigint as "confirmed!",
       0::bigint as "failed!", 0::bigint as "unknown!", 0::bigint as "skipped!", sum(u.bounced)::bigint as "bounced!",
       sum(u.complained)::bigint as "complained!", sum(u.opened)::bigint as "opened!", sum(u.opened_human)::bigint as "opened_human!",
       sum(u.clicked)::bigint as "clicked!", sum(u.clicked_human)::bigint as "clicked_human!",
       sum(u.unsubscribed)::bigint as "unsubscribed!", sum(u.replied)::bigint as "replied!"
from (
    select sequence_id, sent, bounced, complained, opened, opened_human, clicked, clicked_human, unsubscribed, replied, delivered, confirmed
    from content_totals where tenant_id = $1 and hour >= $2 and hour < $3
    union all
    select sequence_id, sent, bounced, complained, opened, opened_human, clicked, clicked_human, unsubscribed, replied, delivered, confirmed
    from content_changes where tenant_id = $1 and hour >= $2 and hour < $3
) u
join sequences s on s.tenant_id = $1 and s.id = u.sequence_id
group by s.trigger_type
order by s.trigger_type
