-- Enrollments, newest first. $1 tenant, $2 sequence or null, $3 contact or null, $4 status or null, $5 and $6 the last of the page
-- before or null, $7 how many; or $8 one of them, with the others null. Each branch is one way to find them, in the order of its index, and
-- the others end before they begin: so the answer costs a page, whatever the planner believes of the tables. One of them: the primary key.
-- A contact's, and of those that were merged into it (`contacts_merged`), which keep what ended with them: `enrollments_by_contact`. Of any
-- status: `enrollments_by_sequence`, `enrollments_newest`. Of one: `enrollments_over` and `enrollments_live`, sequence by sequence; what is
-- live is shown as its sequence is (`shown_status`).
with found as (
    select e.* from enrollments e where e.tenant_id = $1 and e.id = $8
    union all
    (select e.*
     from (select $3::uuid as id union all select m.id from contacts m where m.tenant_id = $1 and m.merged_into = $3) own
     join enrollments e on e.tenant_id = $1 and e.contact_id = own.id and ($2::uuid is null or e.sequence_id = $2)
     where $3 is not null
       and (e.created_at, e.id) < (coalesce($5, 'infinity'::timestamptz), coalesce($6, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid))
     order by e.created_at desc, e.id desc)
    union all
    (select e.*
     from enrollments e
     where $3 is null and $4::text is null and e.tenant_id = $1 and e.sequence_id = $2
       and (e.created_at, e.id) < (coalesce($5, 'infinity'::timestamptz), coalesce($6, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid))
     order by e.created_at desc, e.id desc
     limit $7)
    union all
    (select e.*
     from enrollments e
     where $2 is null and $3 is null and $4 is null and $8 is null and e.tenant_id = $1
       and (e.created_at, e.id) < (coalesce($5, 'infinity'::timestamptz), coalesce($6, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid))
     order by e.created_at desc, e.id desc
     limit $7)
    union all
    (select e.*
     from sequences s
     cross join lateral (
         (select e.*
          from enrollments e
          where e.tenant_id = $1 and e.sequence_id = s.id and e.status = $4 and e.status in ('completed', 'exited', 'failed')
            and (e.created_at, e.id) < (coalesce($5, 'infinity'::timestamptz), coalesce($6, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid))
          order by e.created_at desc, e.id desc
          limit $7)
         union all
         (select e.*
          from enrollments e
          where $4 = shown_status('active', s.status)
            and e.tenant_id = $1 and e.sequence_id = s.id and e.status in ('active', 'paused')
            and (e.created_at, e.id) < (coalesce($5, 'infinity'::timestamptz), coalesce($6, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid))
          order by e.created_at desc, e.id desc
          limit $7)
     ) e
     where $3 is null and $4 is not null and s.tenant_id = $1 and ($2 is null or s.id = $2)
     order by e.created_at desc, e.id desc
     limit $7)
), shown as (
    select e.*, s.status as sequence_status, s.archived_at, shown_status(e.status, s.status) as shown
    from found e
    cross join lateral (
        select s.status, s.archived_at from sequences s where s.tenant_id = $1 and s.id = e.sequence_id offset 0
    ) s
), page as (
    select * from shown where $4 is null or shown = $4 order by created_at desc, id desc limit $7
)
select e.id as "id!", e.sequence_id as "sequence_id!", e.version as "version!", e.contact_id as "contact_id!", c.address as "email?",
       e.shown as "status!: EnrollmentStatus",
       case when e.status in ('active', 'paused') and e.sequence_status = 'archived' then 'sequence_archived' else e.exit_reason end
           as "exit_reason: ExitReason",
       case when e.status in ('active', 'paused') and e.sequence_status <> 'archived' then e.next_step end as next_step,
       case when e.sequence_status <> 'archived' then e.next_action_at end as next_action_at,
       -- While its sequence is paused it waits for that.
       case when e.shown = 'active' then e.held_by end as held_by, e.attempts as "attempts!", e.last_error,
       coalesce(e.ended_at, case when e.sequence_status = 'archived' then e.archived_at end) as ended_at,
       e.created_at as "created_at!", e.updated_at as "updated_at!"
from page e
left join lateral (
    select c.address from contacts c where c.tenant_id = $1 and c.id = e.contact_id and c.status <> 'erased' offset 0
) c on true
order by e.created_at desc, e.id desc
