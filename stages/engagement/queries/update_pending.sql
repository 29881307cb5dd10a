-- Updates pending facts that were tried: those that still wait are tried again after a pause that grows with their age (two seconds to an
-- hour), and are dropped after 72 hours; the others are done. A fact that names no send is dropped after one hour: its send is found by the
-- provider's id of the mail, which is stored with the result of the send, within its lease, or with the first event that names the send. If
-- it is not, it is mail of another system that goes through the same account. $1 tenants, $2 ids, $3 reasons, $4 whether each still waits.
-- Answers the dropped ones whose send never came. The rows are locked.
with tried as (
    select w.*, p.pending_since < now() - case when w.reason = 'unknown_send' and p.send_id is null
                                               then interval '1 hour' else interval '72 hours' end as is_over
    from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bool[]) as w (tenant_id, id, reason, waits)
    cross join lateral (
        select p.pending_since, p.send_id from pending_facts p
        where p.tenant_id = w.tenant_id and p.id = w.id and p.reason = w.reason
        offset 0
    ) p
), done as (
    -- Evidence that was not needed is no loss.
    delete from pending_facts p using tried w
    where p.tenant_id = w.tenant_id and p.id = w.id and p.reason = w.reason
      and (not w.waits or w.reason = 'undecided_send' and w.is_over)
), postponed as (
    update pending_facts p
    set attempts = least(p.attempts + 1, 30000),
        due_at = case when not w.is_over
            then now() + least(greatest((now() - p.pending_since) / 2, interval '2 seconds'), interval '1 hour') end,
        dropped_at = case when w.is_over then now() end
    from tried w
    where p.tenant_id = w.tenant_id and p.id = w.id and p.reason = w.reason and w.waits
      and not (w.reason = 'undecided_send' and w.is_over)
    returning p.id, p.provider, p.send_id, p.dropped_at
)
select id as "id!", provider as "provider?", send_id is not null as "names_its_send!" from postponed where dropped_at is not null
