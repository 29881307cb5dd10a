-- Outcomes, newest first. $1 tenant, $2 one of them or null, $3 contact (of a merged one, those of the one that is left), $4 campaign it is
-- credited to, $5 type, $6 happened since when, $7 and $8 the page before, $9 how many. The plan is made for the parameters: by key,
-- outcomes_by_contact, outcome_credits_by_campaign, or down outcomes_newest. A campaign's are an array, which the key takes: an `exists` below
-- an `or` is asked for each outcome of the tenant.
select o.id, o.source_system, o.source_event_id, o.contact_email, o.dot_number, o.contact_id, o.contact_key,
       o.outcome_type as "outcome_type: OutcomeType", o.premium, o.value_cents, o.occurred_at, o.created_at, o.updated_at,
       is_report_pending(o.credit_reason) as "is_pending!", o.revision, o.model,
       o.click_days, o.delivery_days, o.rule, o.credited_at
from outcomes o
where o.tenant_id = $1 and ($2::uuid is null or o.id = $2) and ($3::uuid is null or o.contact_id = (
      select coalesce(c.merged_into, c.id) from contacts c where c.tenant_id = $1 and c.id = $3))
  and ($4::uuid is null or o.id = any (array(
      select c.outcome_id from outcome_credits c where c.tenant_id = $1 and c.campaign_id = $4)))
  and ($5::text is null or o.outcome_type = $5) and ($6::timestamptz is null or o.occurred_at >= $6)
  and ($7::timestamptz is null or (o.created_at, o.id) < ($7, $8))
order by o.created_at desc, o.id desc limit $9
