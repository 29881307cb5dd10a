-- What decides about occurrences of triggers. $1 tenants, $2 sequences, $3 contacts. By primary keys and `enrollments_by_contact`.
-- Enrollments of contacts that were merged into one of these are the person's, too.
select w.place as "place!", s.status as "status!: SequenceStatus", s.product as "product!", s.reentry as "reentry!",
       s.reentry_gap_minutes as "reentry_gap_minutes!", t.timezone as "tenant_timezone!", c.timezone as contact_timezone,
       c.status = 'active' as "contact_active!", p.step_order as "step_order?", p.delay_amount as "delay_amount?",
       p.delay_unit as "delay_unit?: DelayUnit", max(e.created_at) as last_at,
       coalesce(bool_or(e.status in ('active', 'paused')), false) as "is_live!"
from unnest($1::uuid[], $2::uuid[], $3::uuid[]) with ordinality as w (tenant_id, sequence_id, contact_id, place)
join sequences s on s.tenant_id = w.tenant_id and s.id = w.sequence_id
join tenants t on t.id = w.tenant_id
join contacts c on c.tenant_id = w.tenant_id and c.id = w.contact_id
left join lateral (
    select p.step_order, p.delay_amount, p.delay_unit from sequence_steps p
    where p.tenant_id = w.tenant_id and p.sequence_id = w.sequence_id and p.version = s.version
    order by p.step_order limit 1
) p on true
cross join lateral (
    select w.contact_id as id
    union all
    select m.id from contacts m where m.tenant_id = w.tenant_id and m.merged_into = w.contact_id
) o
left join enrollments e on e.tenant_id = w.tenant_id and e.contact_id = o.id and e.sequence_id = w.sequence_id
group by w.place, s.status, s.product, s.reentry, s.reentry_gap_minutes, t.timezone, c.timezone, c.status, p.step_order,
         p.delay_amount, p.delay_unit
