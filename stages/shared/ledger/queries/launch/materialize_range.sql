-- Writes the next range of a launch's audience to `sends`, and takes it out of `launch_audiences`. Suppressed and opted-out contacts as well:
-- the gate gives them their reason. Each part has batches of its own. A part is a variant of the A/B test, or its remainder, at a moment of
-- a campaign by time zones: the moment's number times the variants and one, plus the variant's; without either all are part 0. A send's
-- number is its batch's number and, in the low nine bits, its position in the batch (`LaunchId`).
-- $1 tenant, $2 launch prefix, $3 month, $4 campaign, $5 sends per batch, $6 the next batch's number. $7: contacts archived before this time
-- are left out; null leaves nobody out. $8 the thresholds of the split; $9 which moment is each time zone's, $10 which is that of contacts
-- without one. Answers each part's first batch and size. About 0.1 s for 20,000 contacts, mostly the two indexes.
with taken as (
    delete from launch_audiences
    where tenant_id = $1 and campaign_id = $4
      and part = (select min(part) from launch_audiences where tenant_id = $1 and campaign_id = $4)
    returning contacts
), members as materialized (
    select m.id, m.part, row_number() over (partition by m.part order by m.id) - 1 as place
    from (
        select c.id,
               coalesce(($9::jsonb ->> c.timezone)::integer, $10) * (cardinality($8::bigint[]) + 1)
                   + case when cardinality($8::bigint[]) = 0 then 0 else width_bucket(ab_draw($4, c.id), $8) end as part
        from (select unnest(contacts) as id from taken) t
        -- By key, whatever the statistics: a range is small beside all contacts.
        cross join lateral (
            select c.id, c.timezone from contacts c
            where c.tenant_id = $1 and c.id = t.id
              and (c.status = 'active' or $7::timestamptz is null or c.updated_at >= $7)
            offset 0
        ) c
    ) m
), parts as (
    select part, sends, ($6::bigint + sum(batches) over (order by part) - batches)::bigint as first_batch
    from (select part, count(*) as sends, (count(*) + $5::bigint - 1) / $5 as batches from members group by part) sized
), inserted as (
    insert into sends (tenant_id, id, month, campaign_id, contact_id)
    select $1, ($2 || lpad(to_hex((p.first_batch + m.place / $5) << 9 | m.place % $5), 9, '0'))::uuid, $3, $4, m.id
    from members m
    join parts p on p.part = m.part
)
select part as "part!", first_batch as "first_batch!", sends as "sends!" from parts order by part
