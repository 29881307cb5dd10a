-- Enrolls contacts, with the columns of the new enrollments as arrays. The loop guard counts on from the contact's newest enrollment.
insert into enrollments (tenant_id, id, sequence_id, contact_id, product, next_step, next_action_at, steps_today, steps_day, event_id,
                         is_parallel, started_at)
select w.tenant_id, w.id, w.sequence_id, w.contact_id, w.product, w.next_step, w.next_action_at, coalesce(before.steps_today, 0),
       before.steps_day, w.event_id, w.is_parallel, w.started_at
from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::smallint[], $7::timestamptz[], $8::uuid[], $9::bool[],
            $10::timestamptz[])
    as w (tenant_id, id, sequence_id, contact_id, product, next_step, next_action_at, event_id, is_parallel, started_at)
left join lateral (
    select e.steps_today, e.steps_day from enrollments e
    where e.tenant_id = w.tenant_id and e.contact_id = w.contact_id and e.sequence_id = w.sequence_id
    order by e.created_at desc, e.id desc limit 1
) before on true
on conflict do nothing
returning id
