-- What every request of the API costs before its act, for all requests that are waiting together: burns the nonces, counts the requests
-- in their keys' minutes, and finds the tenants they name. Of two with one nonce the first is fresh; nothing is counted or found for a
-- nonce that was seen before. Answers one row for each, by its position from 1.
-- Nothing waits for the disk: a crash of Postgres itself can forget the nonces of the last fraction of a second.
-- Nonces and counts are written in the order of their keys, in which everybody locks them. By primary key, all of it; to be called on
-- connections that keep their plans. `admit` stays for processes of the version before.
create function admit_all(
    of_keys uuid[], given_nonces text[], are_limited boolean[], of_products text[], of_environments text[], of_tenants text[]
) returns table (place bigint, nonce_is_fresh boolean, used_now integer, resets_in integer, linked_tenant uuid)
language plpgsql
as $$
begin
    perform set_config('synchronous_commit', 'off', true);
    return query
    with asked as materialized (
        select a.*
        from unnest(of_keys, given_nonces, are_limited, of_products, of_environments, of_tenants) with ordinality
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
    select n.place, n.is_fresh,
           case when n.is_fresh and n.is_limited then (c.used - n.together + n.number)::integer end,
           case when n.is_fresh and n.is_limited
               then ceil(extract(epoch from date_trunc('minute', now()) + interval '1 minute' - now()))::integer end,
           l.tenant_id
    from numbered n
    left join counted c on c.key_id = n.key_id
    left join lateral (
        select l.tenant_id from tenant_links l
        where l.product = n.product and l.environment = n.environment and l.product_tenant_id = n.product_tenant_id
          and n.is_fresh
        offset 0
    ) l on true;
end $$;
revoke execute on function admit_all(uuid[], text[], boolean[], text[], text[], text[]) from public;
grant execute on function admit_all(uuid[], text[], boolean[], text[], text[], text[]) to postrider_ingress;
