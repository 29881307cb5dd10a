-- Renews a delivery session. Primary key.
insert into delivery_sessions (first_token, last_token) values ($1, $2)
on conflict (first_token) do update set seen_at = clock_timestamp()
