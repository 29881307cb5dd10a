-- Updates pending facts that were tried: those that still wait are tried again after a pause that grows with their age (two seconds to an
-- hour), and are dropped after 72 hours; the others are done. $1 tenants, $2 ids, $3 reasons, $4 whether each still waits. Answers the
-- dropped ones whose send never came. The rows are locked.
with tried as (
    select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bool[]) as w (tenant_id, id, reason, waits)
), done as (
    -- Evidence that was not needed is no loss.
    delete from pending_facts p using tried w
    where p.tenant_id = w.tenant_id and p.id = w.id and p.reason = w.reason
      and (not w.waits or w.reason = 'undecided_send' and p.pending_since < now() - interval '72 hours')
), postponed as (
    update pending_facts p
    set attempts = least(p.attempts + 1, 30000),
        due_at = case when p.pending_since >= now() - interval '72 hours'
            then now() + least(greatest((now() - p.pending_since) / 2, interval '2 seconds'), interval '1 hour') end,
        dropped_at = case when p.pending_since < now() - interval '72 hours' then now() end
    from tried w
    where p.tenant_id = w.tenant_id and p.id = w.id and p.reason = w.reason and w.waits
      and not (w.reason = 'undecided_send' and p.pending_since < now() - interval '72 hours')
    returning p.id, p.provider, p.dropped_at
)
select id, provider from postponed where dropped_at is not null
