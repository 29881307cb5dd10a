-- Renews a delivery session. Asynchronous commit: what a crash of Postgres loses, the next renewal writes again. Primary key.
insert into delivery_sessions (first_token, last_token)
select $1::uuid, $2::uuid where set_config('synchronous_commit', 'off', true) = 'off'
on conflict (first_token) do update set seen_at = clock_timestamp()
