-- Delivery processes that live. Each says so every few seconds; the token of every claim it makes lies between `first_token` and
-- `last_token`. So the sends of a process that is gone are known by their tokens, and wait for no lease. Not a tenant's.
create table delivery_sessions (
    first_token uuid primary key,
    last_token uuid not null,
    seen_at timestamptz not null default clock_timestamp()
);
grant select, insert, update, delete on delivery_sessions to postrider_stages;

-- The token of an attempt that ended in doubt and is made once more: the first attempt's acceptance is still evidence when it comes late.
alter table sends add column doubted_token uuid;
