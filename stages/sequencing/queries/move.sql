-- Writes the cursors of enrollments, which are locked. $1 tenants, $2 enrollments, then the columns. A step that was taken counts
-- for the loop guard's day. An enrollment is not paused if its sequence was resumed since it was read: it keeps its time, and is due.
update enrollments e
set status = case
        when w.status = 'paused' and exists (
                 select from sequences s
                 join tenants t on t.id = s.tenant_id
                 where s.tenant_id = e.tenant_id and s.id = e.sequence_id and s.status = 'active'
                   and t.status = 'active' and t.paused_at is null)
            then 'active'
        else w.status
    end,
    exit_reason = w.exit_reason,
    next_step = w.next_step,
    next_action_at = w.next_action_at,
    attempts = w.attempts,
    last_error = w.last_error,
    claim_token = w.claim_token,
    held_by = w.held_by,
    opted_out_by_step = e.opted_out_by_step or w.opted_out,
    steps_today = case when e.steps_day = (now() at time zone 'UTC')::date then e.steps_today else 0 end + w.took_step::integer,
    steps_day = (now() at time zone 'UTC')::date,
    ended_at = case when w.next_action_at is null then clock_timestamp() end,
    updated_at = clock_timestamp()
from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::smallint[], $6::timestamptz[], $7::smallint[], $8::text[],
            $9::uuid[], $10::bool[], $11::bool[], $12::text[])
    as w (tenant_id, id, status, exit_reason, next_step, next_action_at, attempts, last_error, claim_token, opted_out, took_step,
          held_by)
where e.tenant_id = w.tenant_id and e.id = w.id
