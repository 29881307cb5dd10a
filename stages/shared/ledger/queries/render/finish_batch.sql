-- Moves a batch's counters for failed sends, and its state by what is still open: done, resting until the next deferred
-- send is due, or unchanged. In a statement of its own, so that it sees the sends as they are now.
update batches b
set queued = b.queued - $3, deferred = b.deferred - $4, failed = b.failed + $3 + $4,
    state = case
        when b.queued - $3 + b.fenced + b.deferred - $4 = 0 then 'done'
        when b.queued - $3 + b.fenced = 0 then 'resting'
        else b.state end,
    announce_after = case
        when b.queued - $3 + b.fenced + b.deferred - $4 = 0 then null
        when b.queued - $3 + b.fenced = 0 then (
            select min(s.next_attempt_at) from sends s
            where s.tenant_id = $1 and s.id between $2 and $6 and s.month = $5 and s.state = 'deferred')
        else b.announce_after end,
    quiet_at = case when b.state = 'announced' and b.queued - $3 + b.fenced = 0 then now() else b.quiet_at end,
    done_at = case when b.queued - $3 + b.fenced + b.deferred - $4 = 0 then now() else b.done_at end
where b.tenant_id = $1 and b.id = $2
