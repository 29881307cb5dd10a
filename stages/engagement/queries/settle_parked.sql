-- What becomes of parked facts that were looked at: those that wait on are looked at again after a pause that grows with their age
-- (two seconds to an hour), and are given up after 72 hours; the others are done. $1 tenants, $2 ids, $3 reasons, $4 whether each
-- waits on. Answers those given up whose send never came. The rows are locked.
with looked as (
    select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bool[]) as w (tenant_id, id, reason, waits)
), done as (
    -- Evidence that nobody needed any more is no loss.
    delete from parked_facts p using looked w
    where p.tenant_id = w.tenant_id and p.id = w.id and p.reason = w.reason
      and (not w.waits or w.reason = 'undecided_send' and p.parked_at < now() - interval '72 hours')
), put_off as (
    update parked_facts p
    set attempts = least(p.attempts + 1, 30000),
        due_at = case when p.parked_at >= now() - interval '72 hours'
            then now() + least(greatest((now() - p.parked_at) / 2, interval '2 seconds'), interval '1 hour') end,
        dropped_at = case when p.parked_at < now() - interval '72 hours' then now() end
    from looked w
    where p.tenant_id = w.tenant_id and p.id = w.id and p.reason = w.reason and w.waits
      and not (w.reason = 'undecided_send' and p.parked_at < now() - interval '72 hours')
    returning p.id, p.provider, p.dropped_at
)
select id, provider from put_off where dropped_at is not null
