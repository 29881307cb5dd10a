-- Admits requests, for all that wait at the same time: records the nonces, counts the requests against the limits of their rate keys, and
-- finds the tenants they name. Of two requests with one nonce the first is fresh; nothing is counted or found for a nonce that was used
-- before. Returns one row for each request, by its position from 1.
-- The limit holds over any sixty seconds: requests are counted by two seconds, and these count as long as any of them is within the
-- minute. Only admitted requests are counted, so that a caller above its limit is still served at the limit.
-- Nonces and counts are locked in the order of their keys, as in every other statement. Every access is by primary key.
-- Asynchronous commit: the last condition is always true and saves the round trips of begin and commit.
-- $1 keys, $2 nonces, $3 limits (0: none), $4 products, $5 environments, $6 the products' own tenants, $7 rate keys.
with asked as materialized (
    select a.*, a.allowed > 0 as is_limited
    from unnest($1::uuid[], $2::text[], $3::integer[], $4::text[], $5::text[], $6::text[], $7::uuid[]) with ordinality
        as a (key_id, nonce, allowed, product, environment, product_tenant_id, rate_key, place)
), recorded as (
    insert into nonces (key_id, nonce)
    select a.key_id, a.nonce from asked a where a.nonce is not null order by a.key_id, a.nonce
    on conflict do nothing
    returning nonces.key_id, nonces.nonce
), checked as materialized (
    select a.*,
           a.nonce is null
               or b.nonce is not null and row_number() over (partition by a.key_id, a.nonce order by a.place) = 1 as is_fresh
    from asked a
    left join recorded b on b.key_id = a.key_id and b.nonce = a.nonce
), keyed as (
    select j.rate_key, count(*)::integer as requests, max(j.allowed) as allowed,
           floor(extract(epoch from now()) / 2)::bigint as bucket
    from checked j
    where j.is_fresh and j.is_limited
    group by j.rate_key
), counted as (
    insert into rate_counts as w (key_id, bucket, counts, allowed)
    select k.rate_key, k.bucket, least(k.requests, k.allowed) || array_fill(0, array[30]), k.allowed
    from keyed k
    order by k.rate_key
    -- The counts move on by the time that has passed since, and what is admitted of the group is added to the newest. Counts that are
    -- more than their length away are cleared: they are over, or the database's clock was set back.
    on conflict (key_id) do update set
        bucket = case when abs(excluded.bucket - w.bucket) > 31 then excluded.bucket else greatest(w.bucket, excluded.bucket) end,
        allowed = excluded.allowed,
        (counts, was) = (
            select (moved.c[1] + least(excluded.counts[1], greatest(excluded.allowed - moved.total, 0))) || moved.c[2:31], moved.total
            from (
                select m.c, (select sum(n) from unnest(m.c) n)::integer as total
                from (
                    select (array_fill(0, array[case when abs(excluded.bucket - w.bucket) > 31 then 31
                                                     else greatest(excluded.bucket - w.bucket, 0) end::integer])
                            || w.counts)[1:31] as c
                    offset 0
                ) m
                offset 0
            ) moved
        )
    returning w.key_id, w.was, (select max(place) from unnest(w.counts) with ordinality c (n, place) where n > 0) as oldest
), numbered as (
    -- Those of one key come one after the other.
    select j.*, count(*) filter (where j.is_fresh and j.is_limited) over (partition by j.rate_key order by j.place) as number
    from checked j
)
select n.place as "place!", n.is_fresh as "nonce_is_fresh!",
       case when n.is_fresh and n.is_limited then (c.was + n.number)::integer end as used_now,
       case when n.is_fresh and n.is_limited
           then (2 * (32 - coalesce(c.oldest, 1)))::integer end as resets_in,
       l.tenant_id as "linked_tenant?"
from numbered n
left join counted c on c.key_id = n.rate_key
left join lateral (
    select l.tenant_id from tenant_links l
    where l.product = n.product and l.environment = n.environment and l.product_tenant_id = n.product_tenant_id
      and n.is_fresh
    offset 0
) l on true
where set_config('synchronous_commit', 'off', true) = 'off'
