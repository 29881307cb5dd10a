-- How fast mail goes to whom: what processes found out about receivers, and the warm-up of new sending domains.

-- Paths that are held to a pace: from one sending domain to one receiver (a recipient domain, or the name of a large operator's
-- family of domains). Processes tell each other here; a row that nobody renews is forgotten after an hour.
create table paces (
    tenant_id uuid not null references tenants (id),
    sending_domain text not null,
    receiver text not null,
    rate double precision not null check (rate > 0),        -- mails a second, of each process
    threshold double precision not null,                    -- below this it is raised by doubling
    cut_at timestamptz not null,
    held_since timestamptz not null,
    good_at timestamptz,                                    -- when the receiver last took something since
    updated_at timestamptz not null default clock_timestamp(),
    primary key (tenant_id, sending_domain, receiver)
) with (fillfactor = 70);
create index paces_by_age on paces (updated_at);
select wall_off('paces');
revoke insert, update, delete on paces from postrider_ingress;

-- A sending domain that is being warmed up: on each day on which it sends it may hand over so many mails, more every day. Without
-- a row, or off, there is no limit.
create table domain_warmups (
    tenant_id uuid not null,
    domain_id uuid not null,
    is_on boolean not null default true,
    caps bigint[] check (cardinality(caps) between 1 and 365 and 0 < all (caps)),   -- null: the plan of the program
    started_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (tenant_id, domain_id),
    foreign key (tenant_id, domain_id) references domains (tenant_id, id)
);
select wall_off('domain_warmups');
revoke update, delete on domain_warmups from postrider_ingress;

-- What such a domain has handed over, by UTC day, from its first fences as the send quota counts. The row in domain_warmups is
-- locked while a day's use is read and written, so it is exact over any number of processes.
create table warmup_usage (
    tenant_id uuid not null,
    domain_id uuid not null,
    day date not null,
    used bigint not null,
    primary key (tenant_id, domain_id, day),
    foreign key (tenant_id, domain_id) references domains (tenant_id, id)
) with (fillfactor = 50);
select wall_off('warmup_usage');
revoke insert, update, delete on warmup_usage from postrider_ingress;

-- For the platform's health, above tenants: paths that are held, how many of them have taken nothing for an hour, and domains that
-- are warmed up.
create function platform_pacing() returns table (held bigint, barren bigint, slowest double precision, warming bigint)
language sql stable security definer set search_path from current
as $$
    select p.held, p.barren, p.slowest, w.warming
    from (select count(*) as held,
                 count(*) filter (where coalesce(q.good_at, q.held_since) < now() - interval '1 hour') as barren,
                 min(q.rate) as slowest
          from (select held_since, good_at, rate from paces where updated_at > now() - interval '1 hour' limit 10000) q) p
    cross join (select count(*) as warming from (select from domain_warmups where is_on limit 10000) q) w
$$;
revoke execute on function platform_pacing() from public;
grant execute on function platform_pacing() to postrider_ingress, postrider_stages;
