-- The rate limit of a key is a sliding minute: its requests are counted by two seconds, and the counts of the last minute are added up.
-- One row a key, so that whoever counts waits for the one before and misses nothing. Unlogged: a crash of Postgres forgives a minute.
-- (`rate_windows` stays for processes of the version before, and for assistants.)
create unlogged table rate_counts (
    key_id uuid primary key,
    bucket bigint not null,                     -- the two seconds of the first count: seconds since 1970, halved
    counts integer[] not null,                  -- admitted in the last 31 times two seconds, the newest first
    allowed integer not null,                   -- in a minute, by the last group of requests
    was integer not null default 0              -- the sum before the last group
) with (fillfactor = 50);
grant select, insert, update, delete on rate_counts to postrider_ingress, postrider_stages;
