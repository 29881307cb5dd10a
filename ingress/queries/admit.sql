-- What every request of the API costs before its act, for all requests that are waiting together: burns the nonces, counts the requests
-- against the limits of their keys, and finds the tenants they name. Of two with one nonce the first is fresh; nothing is counted or
-- found for a nonce that was seen before. Answers one row for each, by its position from 1.
-- The limit holds over any sixty seconds: requests are counted in rows of two seconds, and a row counts as long as any of it is within
-- the minute. Only what is admitted is counted, so that a caller who does not stop asking is served at the rate that is his.
-- Nonces and counts are written in the order of their keys, in which everybody locks them. By primary key, all of it.
-- $1 keys, $2 nonces, $3 limits (0: none), $4 products, $5 environments, $6 the products' own tenants.
-- The function `admit_all` does the same, by whole minutes, for processes of the version before.
with asked as materialized (
    select a.*, a.allowed > 0 as is_limited
    from unnest($1::uuid[], $2::text[], $3::integer[], $4::text[], $5::text[], $6::text[]) with ordinality
        as a (key_id, nonce, allowed, product, environment, product_tenant_id, place)
), burnt as (
    insert into nonces (key_id, nonce)
    select a.key_id, a.nonce from asked a where a.nonce is not null order by a.key_id, a.nonce
    on conflict do nothing
    returning nonces.key_id, nonces.nonce
), judged as materialized (
    select a.*,
           a.nonce is null
               or b.nonce is not null and row_number() over (partition by a.key_id, a.nonce order by a.place) = 1 as is_fresh
    from asked a
    left join burnt b on b.key_id = a.key_id and b.nonce = a.nonce
), keyed as materialized (
    -- What each key has used in the minute before these two seconds.
    select k.key_id, k.requests, k.allowed, coalesce(e.used, 0)::integer as earlier,
           coalesce(e.oldest, date_bin('2 seconds', now(), 'epoch')) as oldest
    from (
        select j.key_id, count(*)::integer as requests, max(j.allowed) as allowed
        from judged j where j.is_fresh and j.is_limited
        group by j.key_id
    ) k
    cross join lateral (
        select sum(w.used) as used, min(w.window_start) as oldest
        from rate_windows w
        where w.key_id = k.key_id and w.used > 0
          and w.window_start > now() - interval '62 seconds' and w.window_start < date_bin('2 seconds', now(), 'epoch')
        offset 0
    ) e
), counted as (
    insert into rate_windows as w (key_id, window_start, used, most)
    select k.key_id, date_bin('2 seconds', now(), 'epoch'), least(k.requests, greatest(k.allowed - k.earlier, 0)), k.allowed - k.earlier
    from keyed k
    order by k.key_id
    on conflict (key_id, window_start) do update
        set was = w.used, used = least(w.used + excluded.used, greatest(excluded.most, w.used)), most = excluded.most
    returning w.key_id, w.was
), numbered as (
    -- Those of one key come one after the other.
    select j.*, count(*) filter (where j.is_fresh and j.is_limited) over (partition by j.key_id order by j.place) as number
    from judged j
)
select n.place as "place!", n.is_fresh as "nonce_is_fresh!",
       case when n.is_fresh and n.is_limited then (k.earlier + c.was + n.number)::integer end as used_now,
       case when n.is_fresh and n.is_limited
           then ceil(extract(epoch from k.oldest + interval '62 seconds' - now()))::integer end as resets_in,
       l.tenant_id as "linked_tenant?"
from numbered n
left join keyed k on k.key_id = n.key_id
left join counted c on c.key_id = n.key_id
left join lateral (
    select l.tenant_id from tenant_links l
    where l.product = n.product and l.environment = n.environment and l.product_tenant_id = n.product_tenant_id
      and n.is_fresh
    offset 0
) l on true
