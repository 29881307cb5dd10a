-- Locks and reads the oldest notes that no other fan-out has locked, until they name $1 facts or more; one at least, $2 at most. The
-- locks are advisory and not on the rows: a row lock gives the transaction an id, and while that lives Postgres prunes nothing that
-- changed since. A note that was deleted a moment ago may be read once more: its events keep their ids. Primary key.
with oldest as materialized (
    select id from outbox order by id limit 4 * $2::int8
), locked as materialized (
    select id from oldest where pg_try_advisory_xact_lock(hashtextextended('postrider outbox ' || id, 0)) limit $2::int8
), counted as (
    select o.*, sum(cardinality(o.ids)) over (order by o.id) - cardinality(o.ids) as before
    from locked l join outbox o on o.id = l.id
)
select id as "id!", tenant_id as "tenant_id!", source as "source!", month, sends as "sends?: Vec<Uuid>", ids as "ids!"
from counted where before < $1
