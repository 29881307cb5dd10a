-- Stores the current members of an audience: the active contacts that are members of one of the audiences. $1 tenant, $2 audiences,
-- $3 campaign, $4 contacts in a part. Answers their number and the fingerprint that `count.sql` makes of the same contacts.
-- About 1.5 s for 1,000,000 contacts.
with parts as materialized (
    select (n / $4::bigint)::integer as part, array_agg(id) as contacts, count(*) as size, bit_xor(uuid_hash_extended(id, 0)) as fingerprint
    from (
        select c.id, row_number() over () - 1 as n
        from contacts c
        where c.tenant_id = $1
          and c.status = 'active'
          and c.id in (select m.contact_id from audience_members m where m.tenant_id = $1 and m.audience_id = any ($2))
    ) numbered
    group by 1
), stored as (
    insert into launch_audiences (tenant_id, campaign_id, part, contacts)
    select $1, $3, part, contacts from parts
)
select coalesce(sum(size), 0)::bigint as "contacts!", coalesce(bit_xor(fingerprint), 0) as "fingerprint!" from parts
