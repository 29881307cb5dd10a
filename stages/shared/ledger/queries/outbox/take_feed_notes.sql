-- As take_notes.sql, of the notes for feeds.
with oldest as materialized (
    select id from feed_notes order by id limit 4 * $2::int8
), locked as materialized (
    select id from oldest where pg_try_advisory_xact_lock(hashtextextended('postrider feed_notes ' || id, 0)) limit $2::int8
), counted as (
    select f.*, sum(cardinality(f.ids)) over (order by f.id) - cardinality(f.ids) as before
    from locked l join feed_notes f on f.id = l.id
)
select id as "id!", tenant_id as "tenant_id!", source as "source!", month, sends as "sends?: Vec<Uuid>", ids as "ids!", 1::int8 as "weight!"
from counted where before < $1
