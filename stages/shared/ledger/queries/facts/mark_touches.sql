-- Marks opens and clicks by the current rules. $1 tenants, $2 sends, $3 months, $4 events, $5 why each is a machine's, null for a
-- person's, $6 the version of the rules.
update events e
set detail = (e.detail - 'machine_reason') || jsonb_strip_nulls(jsonb_build_object(
        'is_machine', w.reason is not null, 'machine_reason', w.reason, 'rules', $6::integer))
from unnest($1::uuid[], $2::uuid[], $3::date[], $4::uuid[], $5::text[]) as w (tenant_id, send_id, month, id, reason)
where e.tenant_id = w.tenant_id and e.send_id = w.send_id and e.id = w.id and e.month = w.month and e.month = any ($3::date[])
