-- Lets enrollments follow a sequence that was resumed or archived, at most $1 of them. Answers how many of each.
-- `sequences_to_settle`, `enrollments_parked` and `enrollments_one_live` serve it.
with sequence as materialized (
    select s.tenant_id, s.id, s.status, s.settle_since
    from sequences s
    where s.settle_since is not null
    order by s.settle_since
    limit 20
    for no key update of s skip locked
), parked as materialized (
    select e.tenant_id, e.id
    from sequence s
    cross join lateral (
        select e.tenant_id, e.id from enrollments e
        where e.tenant_id = s.tenant_id and e.sequence_id = s.id and e.status = 'paused'
        limit $1
        for no key update of e skip locked
    ) e
    where s.status = 'active'
    limit $1
), left_over as materialized (
    select e.tenant_id, e.id
    from sequence s
    cross join lateral (
        select e.tenant_id, e.id from enrollments e
        where e.tenant_id = s.tenant_id and e.sequence_id = s.id and e.status in ('active', 'paused')
        limit $1
        for no key update of e skip locked
    ) e
    where s.status = 'archived'
    limit $1
), resumed as (
    update enrollments e set status = 'active', updated_at = now()
    from parked p
    where e.tenant_id = p.tenant_id and e.id = p.id
    returning 1
), archived as (
    update enrollments e
    set status = 'exited', exit_reason = 'sequence_archived', next_action_at = null, claim_token = null, ended_at = now(),
        updated_at = now()
    from left_over l
    where e.tenant_id = l.tenant_id and e.id = l.id
    returning 1
), over as (
    -- Those looked at go behind the others; one with nothing left for a minute is settled.
    update sequences s
    set settle_since = case
            when s.status not in ('active', 'archived') then null
            when s.updated_at < now() - interval '1 minute' and not exists (
                     select from enrollments e
                     where e.tenant_id = s.tenant_id and e.sequence_id = s.id
                       and (e.status = 'paused' or e.status = 'active' and s.status = 'archived'))
                then null
            else clock_timestamp()
        end
    from sequence q
    where s.tenant_id = q.tenant_id and s.id = q.id
)
select (select count(*) from resumed) as "resumed!", (select count(*) from archived) as "archived!"
