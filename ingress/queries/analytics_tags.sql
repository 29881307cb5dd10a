-- What became of the mail that was due within a window, by tag. $1 tenant, $2 the first request of the window, $3 from, $4 to, $5 the
-- tag that is asked for or null, $6 how many are answered. An id begins with the time when its mail is due, and all sends of a request
-- have that of the request: one range of the key of requests and one of sends_once_per_request, in the months of the window. Counted by
-- sets of tags first, which are fewer than mails. The states as `analytics_campaign.sql` has them, the facts as `recount_batches.sql`.
select t.tag as "tag!", count(*) over () as "tag_count!", sum(t.total)::bigint as "total!", sum(t.sent)::bigint as "sent!",
       sum(t.delivered)::bigint as "delivered!", sum(t.confirmed)::bigint as "confirmed!", sum(t.failed)::bigint as "failed!",
       sum(t.unknown)::bigint as "unknown!", sum(t.skipped)::bigint as "skipped!", sum(t.bounced)::bigint as "bounced!",
       sum(t.complained)::bigint as "complained!", sum(t.opened)::bigint as "opened!", sum(t.opened_human)::bigint as "opened_human!",
       sum(t.clicked)::bigint as "clicked!", sum(t.clicked_human)::bigint as "clicked_human!",
       sum(t.unsubscribed)::bigint as "unsubscribed!", sum(t.replied)::bigint as "replied!"
from (
    select jsonb_array_elements_text(m.tags) as tag, m.*
    from (
        select r.tags, count(*) as total, count(*) filter (where s.state = 'sent') as sent,
               count(counted_delivered_at(s.provider, s.state, s.decided_at, s.delivered_at, s.bounced_at)) as delivered,
               count(counted_confirmed_at(s.provider, s.delivered_at, s.bounced_at)) as confirmed,
               count(*) filter (where s.state in ('failed', 'expired')) as failed, count(*) filter (where s.state = 'unknown') as unknown,
               count(*) filter (where s.state in ('skipped', 'cancelled')) as skipped, count(s.bounced_at) as bounced,
               count(s.complained_at) as complained, count(s.opened_at) as opened, count(s.human_opened_at) as opened_human,
               count(s.clicked_at) as clicked, count(s.human_clicked_at) as clicked_human, count(s.unsubscribed_at) as unsubscribed,
               count(s.replied_at) as replied
        from (
            -- `offset 0`: only the tags go into the join, not all options.
            select id, options -> 'tags' as tags
            from requests
            where tenant_id = $1 and id >= $2 and id < first_id_at($4) and options -> 'tags' is not null
            offset 0
        ) r
        join sends s on s.tenant_id = $1 and s.request_id = r.id
        where s.request_id >= $2 and s.request_id < first_id_at($4)
          and s.month >= date_trunc('month', $3::timestamptz at time zone 'utc')::date
          and s.month <= date_trunc('month', $4::timestamptz at time zone 'utc')::date
        group by r.tags
    ) m
) t
where $5::text is null or t.tag = $5
group by t.tag
order by 3 desc, t.tag
limit $6
