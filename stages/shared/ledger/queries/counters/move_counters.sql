-- Moves the counters of batches in the transaction that moves their sends, and sets the next state of each batch. The rows are
-- locked; the sends are read after they were moved. announce_in: null as planned, else seconds until the batch is announced again;
-- on_dispatch: not before dispatch, because its campaign is paused.
-- Adds to the hour's totals as well, where tests of campaigns are not counted ($18 tenants, $19 kinds, $20 events, $21 counts, $27 hours, null for this one; $22 the shard, which keeps processes out of each other's
-- way), and to the send usage of tenants ($23 tenants, $24 days, null for today, $25 shards, $26 counts): each in the order of its key.
with moved as (
    select b.tenant_id, b.id, d.last, b.month, b.state, d.announce_in, d.on_dispatch, d.lease_seconds,
           b.queued + d.queued as queued, b.fenced + d.fenced as fenced,
           b.deferred + d.deferred as deferred, b.sent + d.sent as sent, b.failed + d.failed as failed,
           b.unknown + d.unknown as unknown, b.skipped + d.skipped as skipped, b.cancelled + d.cancelled as cancelled,
           b.expired + d.expired as expired, b.bounced + d.bounced as bounced,
           b.delivered + d.delivered as delivered
    from unnest(
        $1::uuid[], $2::uuid[], $16::uuid[], $3::int4[], $4::int4[], $5::int4[], $6::int4[], $7::int4[], $8::int4[], $9::int4[], $10::int4[],
        $11::int4[], $12::int4[], $13::float8[], $14::bool[], $15::float8[], $17::int4[]
    ) as d (tenant_id, id, last, queued, fenced, deferred, sent, failed, unknown, skipped, cancelled, expired, bounced,
            announce_in, on_dispatch, lease_seconds, delivered)
    join batches b on b.tenant_id = d.tenant_id and b.id = d.id
), decided as (
    select n.*, l.due,
           case
               when n.queued + n.fenced + n.deferred = 0 then 'done'
               when n.on_dispatch and n.state <> 'done' then 'waiting'
               when n.queued + n.fenced = 0 then 'resting'
               when n.state in ('held', 'waiting', 'timed') then n.state
               else 'announced'
           end as next_state
    from moved n
    cross join lateral (
        select min(s.next_attempt_at) as due from sends s
        where n.queued + n.fenced = 0 and n.deferred > 0
          and s.tenant_id = n.tenant_id and s.month = n.month and s.state = 'deferred' and s.id between n.id and n.last
    ) l
), rolled as (
    insert into rollups as r (tenant_id, hour, kind, event, shard, count)
    select u.tenant_id, coalesce(u.hour, date_trunc('hour', now(), 'UTC')), u.kind, u.event, $22, sum(u.count)::int8
    from unnest($18::uuid[], $19::text[], $20::text[], $21::int8[], $27::timestamptz[]) as u (tenant_id, kind, event, count, hour)
    where u.kind <> 'test'
    group by 1, 2, 3, 4
    order by 1, 2, 3, 4
    on conflict (tenant_id, hour, kind, event, shard) do update set count = r.count + excluded.count
), used as (
    insert into send_usage as s (tenant_id, day, shard, used)
    select u.tenant_id, coalesce(u.day, (now() at time zone 'utc')::date) as day, u.shard, sum(u.used)::int8
    from unnest($23::uuid[], $24::date[], $25::int2[], $26::int8[]) as u (tenant_id, day, shard, used)
    group by 1, 2, 3
    order by 1, 2, 3
    on conflict (tenant_id, day, shard) do update set used = s.used + excluded.used
)
update batches b
set queued = j.queued, fenced = j.fenced, deferred = j.deferred, sent = j.sent, failed = j.failed,
    unknown = j.unknown, skipped = j.skipped, cancelled = j.cancelled, expired = j.expired, bounced = j.bounced, delivered = j.delivered,
    state = j.next_state,
    announce_after = case j.next_state
        when 'done' then null
        when 'waiting' then null
        when 'held' then null
        -- What is due already may be in a worker's hands, or became due after the batch was read.
        when 'resting' then case when j.due <= now() then now() + interval '2 seconds' else j.due end
        -- What is set aside for a day stays so (`owed::set_aside`). A batch whose sends are being fenced is in a worker's hands: a second
        -- announcement would only lose at the fences.
        else coalesce(
            case when b.state = 'announced' and is_set_aside(b.announce_after, b.quiet_at) then b.announce_after end,
            now() + make_interval(secs => j.announce_in),
            case when j.lease_seconds > 0 then greatest(b.announce_after, now() + interval '15 seconds') end,
            b.announce_after, now() + interval '60 seconds')
    end,
    quiet_at = case when b.state = 'announced' and j.next_state <> 'announced' then now() else b.quiet_at end,
    done_at = case when j.next_state = 'done' then coalesce(b.done_at, now()) end,
    -- The earliest lease of its fenced sends; if there were none before, the old value does not count.
    lease_until = case
        when j.lease_seconds = 0 then b.lease_until
        when b.fenced = 0 then now() + make_interval(secs => j.lease_seconds)
        else least(b.lease_until, now() + make_interval(secs => j.lease_seconds))
    end
from decided j
where b.tenant_id = j.tenant_id and b.id = j.id
