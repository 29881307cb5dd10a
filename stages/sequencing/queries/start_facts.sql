-- What decides about occurrences of triggers. $1 tenants, $2 sequences, $3 contacts. By primary keys and `enrollments_by_contact`: what a
-- contact went through is read once, however many occurrences it has, and of deleted enrollments when the last one was. Enrollments of
-- contacts that were merged into one of these are the person's, too.
with past as materialized (
    select k.tenant_id, k.sequence_id, k.contact_id, e.last_at, e.is_live
    from (
        select distinct w.tenant_id, w.sequence_id, w.contact_id
        from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as w (tenant_id, sequence_id, contact_id)
    ) k
    cross join lateral (
        select max(e.created_at) as last_at, coalesce(bool_or(e.status in ('active', 'paused')), false) as is_live
        from (
            select k.contact_id as id
            union all
            select m.id from contacts m where m.tenant_id = k.tenant_id and m.merged_into = k.contact_id
        ) o
        cross join lateral (
            (select e.sequence_id, e.status, e.created_at from enrollments e
             where e.tenant_id = k.tenant_id and e.contact_id = o.id
             offset 0)
            union all
            select p.sequence_id, 'over', p.last_at from past_enrollments p
            where p.tenant_id = k.tenant_id and p.sequence_id = k.sequence_id and p.contact_id = o.id
        ) e
        where e.sequence_id = k.sequence_id
    ) e
)
select w.place as "place!", s.status as "status!: SequenceStatus", s.product as "product!", s.reentry as "reentry!",
       s.reentry_gap_minutes as "reentry_gap_minutes!", t.timezone as "tenant_timezone!", c.timezone as contact_timezone,
       c.status = 'active' as "contact_active!", p.step_order as "step_order?", p.delay_amount as "delay_amount?",
       p.delay_unit as "delay_unit?: DelayUnit", e.last_at, e.is_live as "is_live!"
from unnest($1::uuid[], $2::uuid[], $3::uuid[]) with ordinality as w (tenant_id, sequence_id, contact_id, place)
join past e on e.tenant_id = w.tenant_id and e.sequence_id = w.sequence_id and e.contact_id = w.contact_id
join sequences s on s.tenant_id = w.tenant_id and s.id = w.sequence_id
join tenants t on t.id = w.tenant_id
join contacts c on c.tenant_id = w.tenant_id and c.id = w.contact_id
left join lateral (
    select p.step_order, p.delay_amount, p.delay_unit from sequence_steps p
    where p.tenant_id = w.tenant_id and p.sequence_id = w.sequence_id and p.version = s.version
    order by p.step_order limit 1
) p on true
