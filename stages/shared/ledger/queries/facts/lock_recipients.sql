-- Locks the recipients of these sends, in id order, like every writer of suppressions: so a fence and a suppression are always in order.
-- By key from signal to send to contact. $1 tenants, $2 sends, $3 months.
select recipient.tenant_id as "tenant_id!", recipient.id as "send_id!", c.address
from (
    select distinct w.tenant_id, w.id, s.contact_id
    from unnest($1::uuid[], $2::uuid[], $3::date[]) as w (tenant_id, id, month)
    cross join lateral (
        select s.contact_id from sends s where s.tenant_id = w.tenant_id and s.id = w.id and s.month = w.month offset 0
    ) s
) as recipient
join contacts c on c.tenant_id = recipient.tenant_id and c.id = recipient.contact_id
order by c.id for no key update of c
