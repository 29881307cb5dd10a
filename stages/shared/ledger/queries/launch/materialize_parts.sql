-- Writes the audience of a launch with variants, or at a time of the day in each time zone, to `sends`, like `materialize_sends.sql`, with
-- numbers and batches of its own for each part. $1 to $7 as there, $8 the thresholds of the split; $9 time zones and $10 for each which moment
-- is its own, $11 which is that of contacts without one. A part is a variant, or the remainder, at a moment: the moment's
-- number times the variants and one, plus the variant's. Answers each part's first batch and size.
with members as materialized (
    select m.id, m.part, row_number() over (partition by m.part order by m.id) - 1 as place
    from (
        select c.id,
               coalesce(z.moment, $11::integer) * (cardinality($8::bigint[]) + 1)
                   + case when cardinality($8::bigint[]) = 0 then 0 else width_bucket(ab_draw($5, c.id), $8) end as part
        from contacts c
        left join unnest($9::text[], $10::integer[]) as z (name, moment) on z.name = c.timezone
        where c.tenant_id = $1
          and (c.status = 'active' or $7)
          and c.id in (
              select a.contact_id from audience_members a where a.tenant_id = $1 and a.audience_id = any ($2) and not $7
              union all
              select unnest(p.contacts) from launch_audiences p where p.tenant_id = $1 and p.campaign_id = $5 and $7)
    ) m
), parts as (
    select part, sends, (sum(batches) over (order by part) - batches)::bigint as first_batch
    from (select part, count(*) as sends, (count(*) + $6 - 1) / $6 as batches from members group by part) sized
), inserted as (
    insert into sends (tenant_id, id, month, campaign_id, contact_id)
    select $1, ($3 || lpad(to_hex((p.first_batch + m.place / $6) << 9 | m.place % $6), 9, '0'))::uuid, $4, $5, m.id
    from members m
    join parts p on p.part = m.part
)
select part as "part!", first_batch as "first_batch!", sends as "sends!" from parts order by part
