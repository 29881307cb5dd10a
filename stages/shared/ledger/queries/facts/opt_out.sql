-- Opts out the recipients of unsubscribe signals: the contact here, the suppression that outlives it after this. Harmless to repeat. A
-- contact that has opted in again itself since (`opted_in_at`) stays; consent that the tenant states does not count. By key from
-- signal to send to contact (`offset 0` keeps that order), as the contacts were locked: joining the contacts of a tenant first takes
-- seconds while their locks are held. $1 tenants, $2 sends, $3 months, $4 when. Answers the addresses to suppress.
with opted_out as (
    select distinct on (c.tenant_id, c.id) c.tenant_id, c.id, c.address, w.id as send_id
    from unnest($1::uuid[], $2::uuid[], $3::date[], $4::timestamptz[]) as w (tenant_id, id, month, left_at)
    cross join lateral (
        select s.contact_id from sends s where s.tenant_id = w.tenant_id and s.id = w.id and s.month = w.month offset 0
    ) s
    cross join lateral (
        select c.tenant_id, c.id, c.address from contacts c
        where c.tenant_id = w.tenant_id and c.id = s.contact_id and (c.opted_in_at is null or c.opted_in_at <= w.left_at)
        offset 0
    ) c
    order by c.tenant_id, c.id
), left_now as (
    update contacts c
    set marketing_status = 'unsubscribed', updated_at = now()
    from opted_out
    where c.tenant_id = opted_out.tenant_id and c.id = opted_out.id and c.marketing_status <> 'unsubscribed'
)
select tenant_id as "tenant_id!", address as "address!", send_id as "send_id!" from opted_out
