-- Batches of sequence steps. $1 tenants, $2 batches, $3 months, $4 templates, $5 senders, $6 sizes, $7 seconds until a priority batch is
-- announced again, $8 the most mails of a tenant's sequences under way in the priority lane, $9 how many of the tenant's announced
-- batches there are looked at, the newest first. A tenant with more takes the bulk lane. Answers the priority batches. Served by `batches_open`.
with wanted as (
    select * from unnest($1::uuid[], $2::uuid[], $3::date[], $4::uuid[], $5::uuid[], $6::integer[])
        as w (tenant_id, id, month, template_id, sender_id, size)
), lane as materialized (
    select t.tenant_id, t.size + u.sends <= $8::bigint as is_prompt
    from (select tenant_id, sum(size) as size from wanted group by tenant_id) t
    cross join lateral (
        select coalesce(sum(b.queued + b.fenced) filter (where b.kind = 'sequence'), 0) as sends
        from (
            select b.kind, b.queued, b.fenced from batches b
            where b.lane = 'priority' and b.state = 'announced' and b.tenant_id = t.tenant_id
              and not is_set_aside(b.announce_after, b.quiet_at)
            order by b.id desc
            limit $9
        ) b
    ) u
), batch as (
    insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, state, announce_after,
                         announcement, size, queued)
    select w.tenant_id, w.id, w.month, 'sequence', case when l.is_prompt then 'priority' else 'bulk' end, 'marketing',
           t.content_id, w.sender_id, case when l.is_prompt then 'announced' else 'waiting' end,
           case when l.is_prompt then now() + make_interval(secs => $7) end, l.is_prompt::integer, w.size, w.size
    from wanted w
    join templates t on t.tenant_id = w.tenant_id and t.id = w.template_id
    join lane l on l.tenant_id = w.tenant_id
    returning id, lane
)
select id from batch where lane = 'priority'
