-- The current credits of outcomes. $1 tenants, $2 outcomes. A range of the key for each.
select c.tenant_id as "tenant_id!", c.outcome_id as "outcome_id!", c.send_id as "send_id!", c.campaign_id, c.kind as "kind!: MessageKind",
       c.contact_id as "contact_id!", c.share as "share!", c.premium, c.value_cents, c.touched_at as "touched_at!",
       c.evidence as "evidence!"
from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, outcome_id)
cross join lateral (
    select c.* from outcome_credits c where c.tenant_id = w.tenant_id and c.outcome_id = w.outcome_id offset 0
) c
order by c.tenant_id, c.outcome_id, c.send_id
