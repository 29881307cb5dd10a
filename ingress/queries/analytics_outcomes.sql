-- Outcomes of a window, by kind of mail they are credited to (null: all there are) and type. $1 tenant, $2 from, $3 to. A
-- range of the key.
select nullif(kind, 'recorded') as "kind: MessageKind", outcome_type as "outcome_type!: OutcomeType", sum(outcomes)::bigint as "outcomes!", sum(share)::bigint as "share!",
       sum(premium)::bigint as "premium!", sum(value_cents)::bigint as "value_cents!"
from outcome_hours
where tenant_id = $1 and hour >= $2 and hour < $3
group by kind, outcome_type
