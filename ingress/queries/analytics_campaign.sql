-- What became of a campaign, by variant. $1 tenant, $2 campaign. Served by batches_by_campaign: as much work as it has batches.
select variant, sum(size) as "total!", sum(sent) as "sent!", sum(delivered) as "delivered!", sum(confirmed) as "confirmed!", sum(failed + expired) as "failed!",
       sum(unknown) as "unknown!", sum(skipped + cancelled) as "skipped!", sum(bounced) as "bounced!",
       sum(complained) as "complained!", sum(opened) as "opened!", sum(opened_human) as "opened_human!", sum(clicked) as "clicked!",
       sum(clicked_human) as "clicked_human!", sum(unsubscribed) as "unsubscribed!",
       sum(replied) as "replied!"
from batches
where tenant_id = $1 and campaign_id = $2
group by variant
