-- Fences owed sends ($4: their attempts so far, $5: true for those that were deferred, $8 and $9: the provider routes of these attempts and
-- their kinds); half of all changes are fences, and they set little. What a server or provider reports of a mail may be recorded before its
-- answer, and what counts as delivered depends on the provider: so the fence already sets it, and leaves that of a mail which was reported
-- delivered in an attempt before.
-- A row that has moved meanwhile is left alone, and so is the second of two workers' fences. Answers the position of each that passed.
-- Primary key; no indexed column changes, so updates stay HOT, and none that a trigger watches.
update sends s
set state = 'fenced', reason = null, attempts = s.attempts + 1, fence_token = u.token, route = u.route, lease_until = now() + make_interval(secs => $7),
    fenced_at = clock_timestamp(), next_attempt_at = null, decided_at = null,
    provider = case when s.delivered_at is null then u.provider else s.provider end
from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int2[], $5::bool[], $8::uuid[], $9::text[]) with ordinality
    as u (tenant_id, id, token, attempts, is_deferred, route, provider, position)
where s.tenant_id = u.tenant_id and s.id = u.id and s.month = $6 and s.attempts = u.attempts
  and case when u.is_deferred then s.state = 'deferred' and s.next_attempt_at <= now() else s.state = 'queued' end
returning u.position as "position!"
