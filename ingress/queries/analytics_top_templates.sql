-- The templates whose transactional messages were clicked most within a window. $1 tenant, $2 from, $3 to, $4 how many.
select t.id, t.name, sum(u.sent)::bigint as "sent!", sum(u.bounced)::bigint as "bounced!", sum(u.complained)::bigint as "complained!",
       sum(u.opened)::bigint as "opened!", sum(u.opened_human)::bigint as "opened_human!", sum(u.clicked)::bigint as "clicked!",
       sum(u.clicked_human)::bigint as "clicked_human!", sum(u.unsubscribed)::bigint as "unsubscribed!"
from (
    select content_id, sent, bounced, complained, opened, opened_human, clicked, clicked_human, unsubscribed
    from content_totals where tenant_id = $1 and hour >= $2 and hour < $3
    union all
    select content_id, sent, bounced, complained, opened, opened_human, clicked, clicked_human, unsubscribed
    from content_changes where tenant_id = $1 and hour >= $2 and hour < $3
) u
join lateral (select v.template_id from template_versions v where v.tenant_id = $1 and v.content_id = u.content_id limit 1) v on true
join templates t on t.tenant_id = $1 and t.id = v.template_id
group by t.id, t.name
having sum(u.sent) > 0
order by 9 desc, 7 desc, 3 desc, t.id desc
limit $4
