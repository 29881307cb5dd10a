-- Leases that expired after a fence: the body may have left. Mail that is neither of a campaign nor marketing gets one more attempt with the
-- same bytes, unless its tenant has more than one provider route; the token of the first attempt is kept, in case its answer comes late.
-- Mail that is not tried again does not wait for its lease if its session is gone ($5 to $6). $1 tenants, $2 batches, $3 months, $4 whether
-- their mail is tried again, $7 the reason of the outcome.
with late as (
    select s.tenant_id, s.id, u.month, u.again and s.doubtful = 0 as again
    from unnest($1::uuid[], $2::uuid[], $3::date[], $4::bool[]) as u (tenant_id, id, month, again)
    cross join lateral (
        select s.tenant_id, s.id, s.doubtful from sends s
        where s.tenant_id = u.tenant_id and s.id between u.id and last_id_of(u.id) and s.month = u.month and s.state = 'fenced'
          and (s.lease_until < now()
               or (not u.again or s.doubtful > 0)
                  and exists (select from unnest($5::uuid[], $6::uuid[]) as g (first, last)
                              where s.fence_token between g.first and g.last))
        order by s.id
        for update
    ) s
), doubted as (
    update sends s
    set state = case when u.again then 'queued' else 'unknown' end,
        reason = case when u.again then s.reason else $7 end,
        doubtful = s.doubtful + 1,
        fence_token = case when u.again then null else s.fence_token end,
        doubted_token = case when u.again then s.fence_token else s.doubted_token end,
        lease_until = null, next_attempt_at = null,
        decided_at = case when u.again then null else now() end
    from late u
    where s.tenant_id = u.tenant_id and s.id = u.id and s.month = u.month and s.month = any ($3::date[])
    returning s.tenant_id, s.id, s.month, s.state, s.attempts
), facts as (
    insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
    select d.tenant_id, d.id, gen_random_uuid(), d.month, 'unknown', now(), jsonb_build_object('attempt', d.attempts, 'reason', $7::text)
    from doubted d
)
select id as "id!", state as "state!: SendState" from doubted
