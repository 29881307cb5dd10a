-- Decides sends that are open or unknown by an operator's evidence. Writes the facts, gives back the room of a failure under the frequency
-- cap, and moves the counters of the batches, whose rows the caller has locked. $1 tenants, $2 sends, $3 months, $4 batches, in their order;
-- $5 `sent` or `failed`; $6 the states it may be decided from; $7 the reason of a failure; $8 the fact's detail; $9 shard. Answers the
-- decided sends. Primary keys throughout.
with asked as (
    select * from unnest($1::uuid[], $2::uuid[], $3::date[], $4::uuid[]) as u (tenant_id, id, month, batch_id)
), before as (
    select a.tenant_id, a.id, a.month, a.batch_id, s.state, s.decided_at
    from asked a
    cross join lateral (
        select s.state, s.decided_at from sends s where s.tenant_id = a.tenant_id and s.id = a.id and s.month = a.month for no key update
    ) s
    where s.state = any($6)
), changed as (
    update sends s
    set state = $5, reason = $7, fence_token = null, lease_until = null, next_attempt_at = null, decided_at = now()
    from before b
    where s.tenant_id = b.tenant_id and s.id = b.id and s.month = b.month
    returning b.tenant_id, s.id, s.month, b.batch_id, b.state as was, b.decided_at as was_decided_at, s.attempts,
        $5 = 'sent' and delivers_at_once(s.provider) and s.bounced_at is null as delivered
), uncapped as (
    delete from capped_sends k using changed c where $5 = 'failed' and k.tenant_id = c.tenant_id and k.send_id = c.id
), facts as (
    insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
    select c.tenant_id, c.id, gen_random_uuid(), c.month, $5, now(), $8::jsonb || jsonb_build_object('attempt', c.attempts)
    from changed c
), counted as (
    select tenant_id, batch_id, count(*)::integer as sends,
           count(*) filter (where was = 'queued')::integer as queued,
           count(*) filter (where was = 'fenced')::integer as fenced, count(*) filter (where was = 'deferred')::integer as deferred,
           count(*) filter (where was = 'unknown')::integer as unknown, count(*) filter (where delivered)::integer as delivered
    from changed
    group by tenant_id, batch_id
), left_open as (
    select b.tenant_id, b.id, b.kind, b.state, n.sends, n.queued, n.fenced, n.deferred, n.unknown, n.delivered,
           b.queued + b.fenced - n.queued - n.fenced as in_hand,
           b.deferred - n.deferred as put_off, l.due
    from counted n
    join batches b on b.tenant_id = n.tenant_id and b.id = n.batch_id
    cross join lateral (
        select min(s.next_attempt_at) as due
        from sends s
        where b.state = 'resting' and s.tenant_id = b.tenant_id and s.month = b.month and s.state = 'deferred'
          and s.id between b.id and (left(b.id::text, 33) || lpad(to_hex(('x' || right(b.id::text, 3))::bit(12)::integer | 511), 3, '0'))::uuid
          and s.id not in (select c.id from changed c)
    ) l
), booked as (
    update batches b
    set queued = b.queued - o.queued, fenced = b.fenced - o.fenced, deferred = b.deferred - o.deferred,
        unknown = b.unknown - o.unknown,
        sent = b.sent + case when $5 = 'sent' then o.sends else 0 end,
        failed = b.failed + case when $5 = 'failed' then o.sends else 0 end,
        delivered = b.delivered + o.delivered,
        state = case when o.in_hand + o.put_off = 0 then 'done' else b.state end,
        announce_after = case
            when o.in_hand + o.put_off = 0 then null
            when o.state = 'resting' then o.due
            else b.announce_after
        end,
        quiet_at = case when b.state = 'announced' and o.in_hand + o.put_off = 0 then now() else b.quiet_at end,
        done_at = case when o.in_hand + o.put_off = 0 then coalesce(b.done_at, now()) else b.done_at end
    from left_open o
    where b.tenant_id = o.tenant_id and b.id = o.id
), totals as (
    insert into rollups as r (tenant_id, hour, kind, event, shard, count)
    select o.tenant_id, date_trunc('hour', e.at, 'UTC'), o.kind, e.event, $9, sum(e.count)
    from left_open o
    cross join lateral (
        values ($5, now(), o.sends), ('delivered', now(), o.delivered)
        union all
        select 'unknown', c.was_decided_at, -1 from changed c
        where c.tenant_id = o.tenant_id and c.batch_id = o.id and c.was = 'unknown'
    ) as e (event, at, count)
    where e.count <> 0 and o.kind <> 'test'
    group by 1, 2, 3, 4
    order by 1, 2, 3, 4
    on conflict (tenant_id, hour, kind, event, shard) do update set count = r.count + excluded.count
)
select c.id as "id!", c.was as "was!" from changed c
