-- Makes the evidence due that waits for the outcomes of these sends: provider events, and mail that came back. A row that another
-- transaction has locked is being looked at: it waits for the batch, which is locked. $1 tenants, $2 sends. Served by pending_facts_evidence
-- and inbound_mails_unread.
with asked as (
    select * from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, send_id)
), facts as (
    update pending_facts p set due_at = now()
    from asked w
    cross join lateral (
        select p.tenant_id, p.id, p.reason from pending_facts p
        where p.tenant_id = w.tenant_id and p.send_id = w.send_id and p.reason = 'undecided_send' and p.due_at > now()
        for update skip locked
    ) f
    where p.tenant_id = f.tenant_id and p.id = f.id and p.reason = f.reason
)
update inbound_mails m set due_at = now()
from asked w
cross join lateral (
    select m.tenant_id, m.id from inbound_mails m
    -- One with attempts is being read.
    where m.tenant_id = w.tenant_id and m.send_id = w.send_id and m.due_at > now() and m.attempts = 0
    for update skip locked
) f
where m.tenant_id = f.tenant_id and m.id = f.id
