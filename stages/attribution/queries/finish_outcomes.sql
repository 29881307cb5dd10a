-- Records the result of computing credits. $1 tenants, $2 outcomes, $3 contacts, $4 the keys that found them, $5 minutes until the
-- next recheck, null for none, $6 whether the credit changed, $7 models, $8 and $9 windows, $10 rules, and what the totals
-- now hold: $11 type, $12 hour, $13 premium, $14 value. The rows are locked.
update outcomes o
set contact_id = w.contact_id, contact_key = w.contact_key,
    credit_due = now() + make_interval(mins => w.next_look), credit_reason = 'late_fact',
    revision = o.revision + w.restated::integer, credited_at = case when w.restated then now() else o.credited_at end,
    model = w.model, click_days = w.click_days, delivery_days = w.delivery_days, rule = w.rule,
    booked_type = w.booked_type, booked_hour = w.booked_hour, booked_premium = w.booked_premium,
    booked_value_cents = w.booked_value_cents
from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::int[], $6::bool[], $7::text[], $8::int[], $9::int[], $10::text[],
            $11::text[], $12::timestamptz[], $13::bigint[], $14::bigint[])
    as w (tenant_id, id, contact_id, contact_key, next_look, restated, model, click_days, delivery_days, rule, booked_type,
          booked_hour, booked_premium, booked_value_cents)
where o.tenant_id = w.tenant_id and o.id = w.id
