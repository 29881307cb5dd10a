-- Failed and expired sends with reasons that another attempt may not meet become queued again; their batches, which the
-- caller has locked, wait for dispatch. $1 tenant, $2 first and $3 last ids of the batches, $4 months, $5 the reasons, $6 sends to
-- leave alone, of which there may be a million: `<> all` of a constant is hashed, a subquery that large is read for each send. Attempts stay
-- counted. The totals that counted these sends are corrected.
with tried as (
    select s.id, s.month, w.first as batch_id, s.state, s.reason, s.decided_at,
           s.reason = any ($5) and s.id <> all ($6::uuid[]) as again,
           s.fenced_at is null as unmetered
    from unnest($2::uuid[], $3::uuid[], $4::date[]) as w (first, last, month)
    cross join lateral (
        select s.id, s.month, s.state, s.reason, s.decided_at, s.fenced_at from sends s
        where s.tenant_id = $1 and s.id between w.first and w.last and s.month = w.month and s.state in ('failed', 'expired')
        order by s.id
        for update
    ) s
), changed as (
    update sends s
    set state = 'queued', reason = null, decided_at = null, next_attempt_at = null, fence_token = null, lease_until = null
    from tried t
    where s.tenant_id = $1 and s.id = t.id and s.month = t.month and t.again
    returning t.batch_id, t.state as was, t.reason as why, t.decided_at as at
), counted as (
    select batch_id, count(*)::integer as sends, count(*) filter (where was = 'failed')::integer as failed
    from changed
    group by batch_id
), booked as (
    update batches b
    set failed = b.failed - n.failed,
        expired = b.expired - (n.sends - n.failed),
        queued = b.queued + n.sends,
        state = case when b.state in ('held', 'waiting') then b.state when b.fenced = 0 then 'waiting' else 'announced' end,
        quiet_at = case when b.state = 'announced' and b.fenced = 0 then now() else b.quiet_at end,
        announce_after = case when b.fenced > 0 and b.state not in ('held', 'waiting') then now() end,
        done_at = null
    from counted n
    where b.tenant_id = $1 and b.id = n.batch_id
), totals as (
    insert into rollups as r (tenant_id, hour, kind, event, shard, count)
    select $1, t.hour, t.kind, t.event, 0, -count(*)
    from (
        select date_trunc('hour', at, 'UTC') as hour, 'campaign' as kind, 'failed' as event from changed
        union all
        select date_trunc('hour', at, 'UTC'), 'failure', why from changed
    ) t
    group by t.hour, t.kind, t.event
    order by t.hour, t.kind, t.event
    on conflict (tenant_id, hour, kind, event, shard) do update set count = r.count + excluded.count
)
select count(*) filter (where again) as "queued!", count(*) filter (where again and unmetered) as "unmetered!",
       count(*) filter (where not coalesce(again, false)) as "skipped!" from tried
