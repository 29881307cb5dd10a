-- Publishes reduced rates for the other processes. Ages are in seconds before now; the age of the last accepted mail is null if there
-- is none. The rows come in the order of the key. A row that was not renewed for `pace_life()` is in force no more: what it says
-- of an earlier trouble with the receiver would let mail expire at once.
insert into paces as p (tenant_id, sending_domain, receiver, rate, threshold, cut_at, throttled_since, good_at, updated_at)
select u.tenant_id, u.sending_domain, u.receiver, u.rate, u.threshold, clock_timestamp() - make_interval(secs => u.cut_age),
       clock_timestamp() - make_interval(secs => u.held_age), clock_timestamp() - make_interval(secs => u.good_age), clock_timestamp()
from unnest($1::uuid[], $2::text[], $3::text[], $4::float8[], $5::float8[], $6::float8[], $7::float8[], $8::float8[])
     as u (tenant_id, sending_domain, receiver, rate, threshold, cut_age, held_age, good_age)
on conflict (tenant_id, sending_domain, receiver) do update
set rate = excluded.rate, threshold = excluded.threshold, cut_at = greatest(p.cut_at, excluded.cut_at),
    throttled_since = case when p.updated_at > clock_timestamp() - pace_life()
                           then least(p.throttled_since, excluded.throttled_since) else excluded.throttled_since end,
    good_at = case when p.updated_at > clock_timestamp() - pace_life()
                   then greatest(p.good_at, excluded.good_at) else excluded.good_at end,
    updated_at = excluded.updated_at
