-- Takes the oldest notes of feeds that no other transaction has locked, until they name $1 facts or more; one at least, $2 at most.
-- Primary key.
with oldest as (
    select id, cardinality(ids) as facts from feed_notes
    order by id limit $2 for update skip locked
), counted as (
    select id, sum(facts) over (order by id) - facts as before from oldest
), wanted as (
    select array_agg(id) as ids from counted where before < $1
)
delete from feed_notes f using wanted w
where f.id = any(w.ids)
returning f.tenant_id, f.source, f.month as "month?", f.sends as "sends?: Vec<Uuid>", f.ids
