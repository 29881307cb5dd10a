-- Takes contacts with soft bounces that are not checked yet, and marks these bounces as checked. $1 how many rows at most. Served by
-- soft_bounces_unchecked; rows another process has locked are left to it.
with taken as (
    update soft_bounces b set checked = true
    where (b.tenant_id, b.contact_id, b.send_id) in (
        select tenant_id, contact_id, send_id from soft_bounces
        where not checked order by tenant_id, contact_id limit $1 for update skip locked)
    returning b.tenant_id, b.contact_id
)
select distinct tenant_id, contact_id from taken
