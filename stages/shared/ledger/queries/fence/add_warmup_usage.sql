-- Adds to, or subtracts from, the usage of domains in warm-up ($3: the day). Their rows in domain_warmups are locked, or it is a
-- subtraction: then the rows come in the order of the key.
insert into warmup_usage as w (tenant_id, domain_id, day, used)
select u.tenant_id, u.domain_id, u.day, u.used
from unnest($1::uuid[], $2::uuid[], $3::date[], $4::int8[]) as u (tenant_id, domain_id, day, used)
on conflict (tenant_id, domain_id, day) do update set used = greatest(w.used + excluded.used, 0)
