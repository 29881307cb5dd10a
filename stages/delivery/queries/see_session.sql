-- This session lives. Those that nobody has heard of for a day are forgotten: their leases ended long ago. Primary key.
with silent as (
    delete from delivery_sessions where first_token in (
        select first_token from delivery_sessions where seen_at < now() - interval '1 day' for update skip locked)
)
insert into delivery_sessions (first_token, last_token) values ($1, $2)
on conflict (first_token) do update set seen_at = clock_timestamp()
