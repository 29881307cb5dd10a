-- Resumes the paused enrollments of a resumed sequence, or of a sequence whose tenant was resumed, and ends those of an archived one, at most
-- $1 of each. Answers how many of each. A sequence of a stopped tenant is left until the tenant goes on.
-- `sequences_unapplied`, `enrollments_paused` and `enrollments_one_live` serve it.
with sequence as materialized (
    select s.tenant_id, s.id, s.status, s.unapplied_since
    from sequences s
    where s.unapplied_since is not null
      and (s.status <> 'active'
           or exists (select from tenants t where t.id = s.tenant_id and t.status = 'active' and t.paused_at is null))
    order by s.status <> 'archived', s.unapplied_since
    limit 200
    for no key update of s skip locked
), paused as materialized (
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
