-- Locks and reads the oldest notes for feeds that no other publisher has locked, until they become $1 facts or more; one at least, $2 at
-- most. Primary key.
select f.id as "id!", f.tenant_id as "tenant_id!", f.source as "source!", f.month, f.sends as "sends?: Vec<Uuid>", f.ids as "ids!",
       1::int8 as "weight!"
from (
    select array_agg(f.id) as ids, array_agg(f.facts) as facts
    from (select id, cardinality(ids)::int8 as facts from feed_notes order by id limit 4 * $2::int8) f
) q
cross join lateral lock_notes('feed_notes', q.ids, q.facts, $1::int8, $2::int8) l
cross join lateral (select * from feed_notes f where f.id = l.id offset 0) f
order by l.place
