-- What every request of the API costs before its act, for all requests that are waiting together: burns the nonces, counts the requests
-- in their keys' minutes, and finds the tenants they name. Of two with one nonce the first is fresh; nothing is counted or found for a
-- nonce that was seen before. Answers one row for each, by its position from 1.
-- Nonces and counts are written in the order of their keys, in which everybody locks them. By primary key, all of it.
-- $1 keys, $2 nonces, $3 whether they are limited, $4 products, $5 environments, $6 the products' own tenants.
-- The function `admit_all` does the same for processes of the version before.
with asked as materialized (
    select a.*
    from unnest($1::uuid[], $2::text[], $3::boolean[], $4::text[], $5::text[], $6::text[]) with ordinality
        as a (key_id, nonce, is_limited, product, environment, product_tenant_id, place)
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
), counted as (
    insert into rate_windows as w (key_id, window_start, used)
    select j.key_id, date_trunc('minute', now()), count(*)
    from judged j
    where j.is_fresh and j.is_limited
    group by j.key_id
    order by j.key_id
    on conflict (key_id, window_start) do update set used = w.used + excluded.used
    returning w.key_id, w.used
), numbered as (
    -- Those of one key come one after the other: the last of them has the number that was written.
    select j.*, count(*) filter (where j.is_fresh and j.is_limited) over (partition by j.key_id) as together,
           count(*) filter (where j.is_fresh and j.is_limited) over (partition by j.key_id order by j.place) as number
    from judged j
)
select n.place as "place!", n.is_fresh as "nonce_is_fresh!",
       case when n.is_fresh and n.is_limited then (c.used - n.together + n.number)::integer end as used_now,
       case when n.is_fresh and n.is_limited
           then ceil(extract(epoch from date_trunc('minute', now()) + interval '1 minute' - now()))::integer end as resets_in,
       l.tenant_id as "linked_tenant?"
from numbered n
left join counted c on c.key_id = n.key_id
left join lateral (
    select l.tenant_id from tenant_links l
    where l.product = n.product and l.environment = n.environment and l.product_tenant_id = n.product_tenant_id
      and n.is_fresh
    offset 0
) l on true
