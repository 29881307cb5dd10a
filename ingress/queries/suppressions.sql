-- The suppressions of a tenant that are in force, newest first. Every plan is made for its parameters: the few of one reason or scope are
-- found by `suppressions_by_reason` and `suppressions_by_scope`, others by `suppressions_newest`, those of an address by the primary key.
select id as suppression_id, address as email, reason, scope, source, send_id, note, created_at, expires_at
from suppressions
where tenant_id = $1 and is_in_force(expires_at) and ($2::text is null or address = $2) and ($3::text is null or reason = $3)
  and ($4::text is null or scope = $4) and ($5::timestamptz is null or (created_at, id) < ($5, $6))
order by created_at desc, id desc limit $7
