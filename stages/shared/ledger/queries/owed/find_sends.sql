-- The owed sends among these: queued, or deferred and due, since when. Read without a lock: the fence compares attempts and state. Primary key, one by
-- one (`offset 0`: without statistics the planner compares all with all).
select s.id as "id!", s.contact_id as "contact_id!", s.attempts as "attempts!", s.doubtful as "doubtful!", s.is_deferred as "is_deferred!",
       s.next_attempt_at as "due_at?", s.metered_on as "metered_on?", s.route
from unnest($1::uuid[], $2::uuid[]) as u (tenant_id, id)
cross join lateral (
    select s.id, s.contact_id, s.attempts, s.doubtful, s.route, s.state = 'deferred' as is_deferred,
           case when s.state = 'deferred' then s.next_attempt_at end as next_attempt_at, (s.fenced_at at time zone 'utc')::date as metered_on
    from sends s
    where s.tenant_id = u.tenant_id and s.id = u.id and s.month = $3
      and (s.state = 'queued' or s.state = 'deferred' and s.next_attempt_at <= now())
    offset 0
) s
