-- Locks and reads the oldest notes of each tenant that no other fan-out has locked, until they become $1 rows or more; one at least, $2 at
-- most. Tenants in turn, and within a turn the small notes first, until one has waited for ten seconds: one tenant's notes delay no others,
-- however many or large they are, and are not delayed for ever. Jumps from tenant to tenant along `outbox_of_tenant`, from the first one
-- and from that of the oldest note, which is thus always among those considered. Only what is taken is locked, so others find the rest. A note
-- that was deleted a moment ago may be read once more: its events keep their ids. Primary key, `outbox_of_tenant`, and
-- `webhook_subscriptions_live`, once for each tenant.
with recursive heads as (
    ((select o.tenant_id from outbox o where o.noted_at <= clock_timestamp() order by o.id limit 1)
     union
     (select o.tenant_id from outbox o order by o.tenant_id limit 1))
    union
    select n.tenant_id
    from heads h
    cross join lateral (
        select o.tenant_id from outbox o where o.tenant_id > h.tenant_id order by o.tenant_id limit 1
    ) n
), tenants as materialized (
    select h.tenant_id, 1 + (
               select count(*) from webhook_subscriptions s where s.tenant_id = h.tenant_id and s.status <> 'disabled') as weight
    from heads h
    limit 4 * $2::int8
), candidates as (
    select o.id, o.noted_at, t.weight, o.facts * t.weight as rows, row_number() over (partition by t.tenant_id order by o.id) as turn
    from tenants t
    cross join lateral (
        select o.id, o.noted_at, o.facts
        from outbox o
        -- As a range: with an equality the order would be that of the primary key as well, and all tenants' notes could be read in it.
        where (o.tenant_id, o.id) >= (t.tenant_id, 0::int8) and (o.tenant_id, o.id) <= (t.tenant_id, 9223372036854775807)
          and o.noted_at <= clock_timestamp()
        order by o.tenant_id, o.id
        limit 16 * $2::int8 / greatest((select count(*) from tenants), 1)
    ) o
), queue as (
    select array_agg(c.id) as ids, array_agg(c.rows) as rows, array_agg(c.weight) as weights
    from (
        select id, rows, weight from candidates
        order by turn, case when noted_at > now() - interval '10 seconds' then rows else 0 end, id
    ) c
)
select o.id as "id!", o.tenant_id as "tenant_id!", o.source as "source!", o.month, o.sends as "sends?: Vec<Uuid>", o.ids as "ids!",
       q.weights[l.place] as "weight!"
from queue q
cross join lateral lock_notes('outbox', q.ids, q.rows, $1::int8, $2::int8) l
cross join lateral (select * from outbox o where o.id = l.id offset 0) o
order by l.place
