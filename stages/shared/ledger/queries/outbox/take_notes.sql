-- Takes the oldest notes that no other transaction has locked, until they name $1 facts or more; one at least, $2 at most. Primary
-- key.
with oldest as (
    select id, cardinality(ids) as facts from outbox order by id limit $2 for update skip locked
), counted as (
    select id, sum(facts) over (order by id) - facts as before from oldest
), wanted as (
    select array_agg(id) as ids from counted where before < $1
)
delete from outbox o using wanted w
where o.id = any(w.ids)
returning o.tenant_id, o.source, o.month as "month?", o.sends as "sends?: Vec<Uuid>", o.ids
