-- Stores facts that were not stored before, and answers them. $1 tenants, $2 sends, $3 ids, $4 months, $5 types, $6 times, $7 details,
-- $8 how many of one kind are stored of one send: of a type, of bounces by class, of answers by whether a program wrote them. Served by the
-- key, a range for each send; the batches are locked, so no other transaction stores facts of these sends. Where the limit matters, facts
-- that are stored take no place from others.
with given as (
    select tenant_id, send_id, month, type, coalesce(detail ->> 'class', detail ->> 'automatic') as subtype,
           array_agg(id order by id) as ids, array_agg(occurred_at order by id) as times, array_agg(detail order by id) as details
    from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::date[], $5::text[], $6::timestamptz[], $7::jsonb[])
        as w (tenant_id, send_id, id, month, type, occurred_at, detail)
    group by tenant_id, send_id, month, type, coalesce(detail ->> 'class', detail ->> 'automatic')
)
insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
select g.tenant_id, g.send_id, f.id, g.month, g.type, f.occurred_at, f.detail
from given g
cross join lateral (
    select $8 - count(*) as remaining from (
        select from events e
        where e.tenant_id = g.tenant_id and e.send_id = g.send_id and e.month = g.month and e.type = g.type
          and coalesce(e.detail ->> 'class', e.detail ->> 'automatic') is not distinct from g.subtype
        limit $8
    ) e
) r
cross join lateral (
    select u.id, u.occurred_at, u.detail, row_number() over (order by u.place) as place
    from unnest(g.ids, g.times, g.details) with ordinality as u (id, occurred_at, detail, place)
    where cardinality(g.ids) <= r.remaining
       or not exists (
           select from events e
           where e.tenant_id = g.tenant_id and e.send_id = g.send_id and e.id = u.id and e.month = g.month offset 0)
) f
where f.place <= r.remaining
-- In the order of the key, as every writer.
order by g.tenant_id, g.send_id, f.id
on conflict do nothing
returning tenant_id, send_id, id
