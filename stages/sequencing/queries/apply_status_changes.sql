-- Resumes the paused enrollments of a resumed sequence, or of a sequence whose tenant was resumed, and ends those of an archived one, at most
-- $1 of each. Answers how many of each. A sequence of a stopped tenant is left until the tenant goes on. Neither kind holds up the other, and
-- sequences of which something is left get as many each: one with a million enrollments does not hold up the others.
-- `sequences_unapplied`, `enrollments_paused` and `enrollments_one_live` serve it.
with sequence as materialized (
    select s.tenant_id, s.id, s.status
    from (values (true), (false)) k (is_archived)
    cross join lateral (
        select s.tenant_id, s.id, s.status
        from sequences s
        where s.unapplied_since is not null and (s.status = 'archived') = k.is_archived
          and (s.status <> 'active'
               or exists (select from tenants t where t.id = s.tenant_id and t.status = 'active' and t.paused_at is null))
        order by s.unapplied_since
        limit 100
        for no key update of s skip locked
    ) s
), unfinished as (
    select s.tenant_id, s.id, s.status, $1::bigint / count(*) over (partition by s.status) as share
    from sequence s
    -- `offset 0`: a look by key for each.
    where exists (
              select from enrollments e
              where e.tenant_id = s.tenant_id and e.sequence_id = s.id and e.status = 'paused' and s.status in ('active', 'archived')
              offset 0)
       or s.status = 'archived' and exists (
              select from enrollments e
              where e.tenant_id = s.tenant_id and e.sequence_id = s.id and e.status = 'active'
              offset 0)
), paused as materialized (
    select e.tenant_id, e.id
    from unfinished s
    cross join lateral (
        select e.tenant_id, e.id from enrollments e
        where e.tenant_id = s.tenant_id and e.sequence_id = s.id and e.status = 'paused'
        limit s.share
        for no key update of e skip locked
    ) e
    where s.status = 'active'
), left_over as materialized (
    select e.tenant_id, e.id
    from unfinished s
    cross join lateral (
        select e.tenant_id, e.id from enrollments e
        where e.tenant_id = s.tenant_id and e.sequence_id = s.id and e.status in ('active', 'paused')
        limit s.share
        for no key update of e skip locked
    ) e
    where s.status = 'archived'
), resumed as (
    update enrollments e set status = 'active', updated_at = now()
    from paused p
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
    -- Visited sequences go behind the others. The change is applied once nothing is left for a minute.
    update sequences s
    set unapplied_since = case
            when s.status not in ('active', 'archived') then null
            when s.updated_at < now() - interval '1 minute' and not exists (
                     select from enrollments e where e.tenant_id = s.tenant_id and e.sequence_id = s.id and e.status = 'paused')
                 -- By itself: a resumed sequence may have a million active ones.
                 and (s.status <> 'archived' or not exists (
                     select from enrollments e where e.tenant_id = s.tenant_id and e.sequence_id = s.id and e.status = 'active'))
                then null
            else clock_timestamp()
        end
    from sequence q
    where s.tenant_id = q.tenant_id and s.id = q.id
)
select (select count(*) from resumed) as "resumed!", (select count(*) from archived) as "archived!"
