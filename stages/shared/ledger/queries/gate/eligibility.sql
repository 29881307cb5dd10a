-- The eligibility of these contacts: $1 tenants and $2 contacts, in pairs. An erased contact is left out.
select asked.tenant_id as "tenant_id!", s.contact_id as "contact_id!", s.contact_active as "contact_active!", s.marketing_status as "marketing_status!",
       s.hard_bounced as "hard_bounced!", s.complained as "complained!", s.unsubscribed as "unsubscribed!", s.invalid as "invalid!",
       s.suppressed_all as "suppressed_all!", s.suppressed_marketing as "suppressed_marketing!",
       s.cap_left, s.timezone
from (
    select u.tenant_id, array_agg(u.contact_id) as contacts
    from unnest($1::uuid[], $2::uuid[]) as u (tenant_id, contact_id)
    group by u.tenant_id
) asked
cross join lateral recipient_eligibility(asked.tenant_id, asked.contacts) s
