-- Takes the oldest notes of feeds that no other transaction has locked, until they name $1 facts or more; one at least, $3 at most, and none
-- younger than $2 seconds. Primary key.
with oldest as (
    select id, cardinality(ids) as facts from feed_notes
    where noted_at < clock_timestamp() - make_interval(secs => $2)
    order by id limit $3 for update skip locked
), counted as (
    select id, sum(facts) over (order by id) - facts as before from oldest
), wanted as (
    select array_agg(id) as ids from counted where before < $1
)
delete from feed_notes f using wanted w
where f.id = any(w.ids)
returning f.id, f.tenant_id, f.source, f.month as "month?", f.sends as "sends?: Vec<Uuid>", f.ids
