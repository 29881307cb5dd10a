-- Claims the owed sends among these, under one token and lease. A second announcement finds no owed sends. Primary key.
update sends s
set state = 'claimed', claim_token = $4, lease_until = now() + make_interval(secs => $5), attempts = s.attempts + 1
from unnest($1::uuid[], $2::uuid[]) as u (tenant_id, id)
where s.tenant_id = u.tenant_id and s.id = u.id and s.month = $3
  and (s.state = 'queued' or (s.state = 'deferred' and s.next_attempt_at <= now()))
returning s.id as "id!", s.contact_id as "contact_id!", s.attempts as "attempts!", s.doubtful as "doubtful!",
          s.next_attempt_at is not null as "was_deferred!", (s.fenced_at at time zone 'utc')::date as "metered_on?"
