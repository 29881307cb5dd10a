-- Locks and reads the oldest notes for feeds that no other publisher has locked, until they become $1 facts or more; one at least, $2 at
-- most. Locked one after the other as in take_notes.sql, so that only what is taken is locked. Primary key.
with recursive queue as materialized (
    select array_agg(f.id) as ids, array_agg(f.facts) as facts
    from (select id, cardinality(ids) as facts from feed_notes order by id limit 4 * $2::int8) f
), locked as (
    select 0 as at, null::int8 as id, 0::int8 as facts, 0 as notes
    union all
    select l.at + 1, n.id, l.facts + case when n.id is null then 0 else n.facts end, l.notes + (n.id is not null)::integer
    from locked l
    cross join lateral (
        select case when pg_try_advisory_xact_lock(hashtextextended('postrider feed_notes ' || q.id, 0)) then q.id end as id, q.facts
        from (select (select ids from queue)[l.at + 1] as id, (select facts from queue)[l.at + 1] as facts offset 0) q
        offset 0
    ) n
    where l.facts < $1::int8 and l.notes < $2::int8 and l.at < (select cardinality(ids) from queue)
)
select f.id as "id!", f.tenant_id as "tenant_id!", f.source as "source!", f.month, f.sends as "sends?: Vec<Uuid>", f.ids as "ids!",
       1::int8 as "weight!"
from locked l
cross join lateral (select * from feed_notes f where f.id = l.id offset 0) f
order by l.at
