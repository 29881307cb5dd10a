-- The campaigns launched within a window that were clicked most. $1 tenant, $2 from, $3 to, $4 how many of the newest are looked
-- at, $5 how many are answered. Served by campaigns_by_launch and batches_by_campaign: as much work as they have batches.
select c.id, c.name, c.launched_at as "launched_at!", s.total as "total!", s.sent as "sent!", s.delivered as "delivered!", s.confirmed as "confirmed!",
       s.failed as "failed!", s.unknown as "unknown!", s.skipped as "skipped!", s.bounced as "bounced!",
       s.complained as "complained!", s.opened as "opened!", s.opened_human as "opened_human!", s.clicked as "clicked!",
       s.clicked_human as "clicked_human!", s.unsubscribed as "unsubscribed!",
       s.replied as "replied!"
from (select id, name, launched_at from campaigns
      where tenant_id = $1 and launched_at >= $2 and launched_at < $3
      order by launched_at desc limit $4) c
cross join lateral (
    select sum(size) as total, sum(sent) as sent, sum(delivered) as delivered, sum(confirmed) as confirmed, sum(failed + expired) as failed,
           sum(unknown) as unknown, sum(skipped + cancelled) as skipped, sum(bounced) as bounced, sum(complained) as complained,
           sum(opened) as opened, sum(opened_human) as opened_human, sum(clicked) as clicked, sum(clicked_human) as clicked_human,
           sum(unsubscribed) as unsubscribed, sum(replied) as replied
    from batches b where b.tenant_id = $1 and b.campaign_id = c.id
) s
where s.total > 0
order by s.clicked_human desc, s.opened_human desc, s.sent desc, c.id desc
limit $5
