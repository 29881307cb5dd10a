-- Adds to the day's totals: uniques as folded ($1 tenants, $2 batches, $3 opened, $4 clicked, $5 unsubscribed, a row per
-- batch), and every single open and click ($6 tenants, $7 sends, $8 months, $9 ids of the new events). $10 shard.
with uniques as (
    select b.tenant_id, b.kind, n.event, sum(n.count) as count
    from unnest($1::uuid[], $2::uuid[], $3::int[], $4::int[], $5::int[]) as d (tenant_id, id, opened, clicked, unsubscribed)
    join batches b on b.tenant_id = d.tenant_id and b.id = d.id
    cross join lateral (values ('opened', d.opened), ('clicked', d.clicked), ('unsubscribed', d.unsubscribed)) as n (event, count)
    where n.count > 0
    group by b.tenant_id, b.kind, n.event
), totals as (
    select b.tenant_id, b.kind, e.type || '_total' as event, count(*) as count
    from (select distinct * from unnest($6::uuid[], $7::uuid[], $8::date[]) as w (tenant_id, send_id, month)) as w
    join events e on e.tenant_id = w.tenant_id and e.send_id = w.send_id and e.month = w.month and e.id = any ($9)
    join sends s on s.tenant_id = e.tenant_id and s.id = e.send_id and s.month = e.month
    join batches b on b.tenant_id = s.tenant_id
        and b.id = (left(s.id::text, 33) || lpad(to_hex((('x' || lpad(right(s.id::text, 3), 8, '0'))::bit(32)::int >> 9) << 9), 3, '0'))::uuid
    where e.type in ('opened', 'clicked')
    group by b.tenant_id, b.kind, e.type
)
insert into rollups as r (tenant_id, day, kind, event, shard, count)
select tenant_id, (now() at time zone 'utc')::date, kind, event, $10, count from (select * from uniques union all select * from totals) as n
order by tenant_id, kind, event
on conflict (tenant_id, day, kind, event, shard) do update set count = r.count + excluded.count
