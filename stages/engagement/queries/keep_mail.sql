-- Stores a mail for each of its sends, unless too many mails of that send wait to be read, and answers the number of sends with too
-- many. A repetition changes nothing. $1 tenants, $2 ids, $3 sends, $4 the kinds of address, $5 null sender, $6 size, $7 head, $8 how many
-- mails of a send may wait. Served by inbound_mails_unread.
with given as (
    select w.*, u.unread
    from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[]) as w (tenant_id, id, send_id, address_kind)
    cross join lateral (
        select count(*) as unread from (
            select from inbound_mails m
            where m.tenant_id = w.tenant_id and m.send_id = w.send_id and m.due_at is not null limit $8
        ) m
    ) u
), stored as (
    insert into inbound_mails (tenant_id, id, send_id, address_kind, null_sender, size, head)
    select g.tenant_id, g.id, g.send_id, g.address_kind, $5, $6, $7 from given g where g.unread < $8
    on conflict do nothing
)
select count(*) as "full!" from given g where g.unread >= $8
