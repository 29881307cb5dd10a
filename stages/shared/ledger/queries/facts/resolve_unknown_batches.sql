-- Moves the counters of batches for resolved sends, and sets their next state. $1 tenants, $2 batches, $3 the last id a send of each can
-- have, $4 how many were queued, $5 deferred, $6 unknown, $7 how many count as delivered. The batches are locked, the sends moved by a
-- statement before.
with moved as (
    select b.tenant_id, b.id, b.month, b.state, d.last, d.queued + d.deferred + d.unknown as resolved, d.delivered,
           b.queued - d.queued as queued, b.deferred - d.deferred as deferred, b.unknown - d.unknown as unknown,
           b.queued - d.queued + b.fenced as busy
    from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int[], $5::int[], $6::int[], $7::int[])
        as d (tenant_id, id, last, queued, deferred, unknown, delivered)
    join batches b on b.tenant_id = d.tenant_id and b.id = d.id
), decided as (
    select n.*,
           case
               when n.busy + n.deferred = 0 then 'done'
               when n.state = 'announced' and n.busy = 0 then 'resting'
               else n.state
           end as next_state
    from moved n
)
update batches b
set queued = j.queued, deferred = j.deferred, unknown = j.unknown, sent = b.sent + j.resolved, delivered = b.delivered + j.delivered, state = j.next_state,
    announce_after = case j.next_state
        when 'done' then null
        when 'resting' then (
            select min(s.next_attempt_at) from sends s
            where s.tenant_id = j.tenant_id and s.month = j.month and s.state = 'deferred' and s.id between j.id and j.last)
        else b.announce_after
    end,
    quiet_at = case when b.state = 'announced' and j.next_state <> 'announced' then now() else b.quiet_at end,
    done_at = case when j.next_state = 'done' then coalesce(b.done_at, now()) end
from decided j
where b.tenant_id = j.tenant_id and b.id = j.id
