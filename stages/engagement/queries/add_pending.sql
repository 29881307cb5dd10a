-- Adds facts that wait for their sends; each is tried again in two seconds. $1 tenants, $2 ids, $3 reasons, $4 sends, $5 providers,
-- $6 ids with the provider, $7 signals, $8 when.
insert into pending_facts (tenant_id, id, reason, send_id, provider, provider_message_id, signal, occurred_at, due_at)
select w.tenant_id, w.id, w.reason, w.send_id, w.provider, w.message_id, w.signal, w.at, now() + interval '2 seconds'
from unnest($1::uuid[], $2::uuid[], $3::text[], $4::uuid[], $5::text[], $6::text[], $7::jsonb[], $8::timestamptz[])
    as w (tenant_id, id, reason, send_id, provider, message_id, signal, at)
order by w.tenant_id, w.id, w.reason
on conflict do nothing
