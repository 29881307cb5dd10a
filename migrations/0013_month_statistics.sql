-- A partition holds one month, and the planner has to know it from the first row. Without statistics it takes `month = …` for
-- one row in two hundred, starts a join from the partition instead of from the few sends that are asked for, and compares
-- every send of a campaign with every send of a batch: measured at 870 ms instead of 6 for 500 of 10,000. Autovacuum would
-- come up to a minute late, which is when a small campaign should be over.

-- Statistics of the column `month` alone, made from rows that are gone again. As many as fill some pages: the planner keeps
-- their density until it knows better.
create function know_month(partition_name text, first date) returns void
language plpgsql security definer set search_path from current
as $$
begin
    if exists (select from pg_stats where schemaname = current_schema() and tablename = partition_name and attname = 'month') then
        return;
    end if;
    if partition_name like 'sends\_%' then
        execute format(
            'insert into %I (tenant_id, id, month, contact_id) select $1, gen_random_uuid(), $2, $1 from generate_series(1, 200)',
            partition_name) using '00000000-0000-0000-0000-000000000000'::uuid, first;
    else
        execute format(
            'insert into %I (tenant_id, send_id, id, month, type, occurred_at) select $1, $1, gen_random_uuid(), $2, '''', now() from generate_series(1, 200)',
            partition_name) using '00000000-0000-0000-0000-000000000000'::uuid, first;
    end if;
    execute format('analyze %I (month)', partition_name);
    execute format('delete from %I where tenant_id = $1', partition_name) using '00000000-0000-0000-0000-000000000000'::uuid;
end $$;
revoke execute on function know_month(text, date) from public;

-- As before, and each new partition knows its month.
create or replace function ensure_partitions(months_ahead integer) returns integer
language plpgsql security definer set search_path from current
as $$
declare
    first date;
    made integer := 0;
    suffix text;
begin
    perform pg_advisory_xact_lock(hashtext('postrider ensure_partitions'));
    for n in 0..months_ahead loop
        first := (date_trunc('month', (now() at time zone 'utc')) + make_interval(months => n))::date;
        suffix := to_char(first, 'YYYY_MM');
        if to_regclass('sends_' || suffix) is null then
            execute format(
                'create table %I partition of sends for values from (%L) to (%L) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05)',
                'sends_' || suffix, first, (first + interval '1 month')::date);
            made := made + 1;
        end if;
        if to_regclass('events_' || suffix) is null then
            execute format(
                'create table %I partition of events for values from (%L) to (%L)',
                'events_' || suffix, first, (first + interval '1 month')::date);
            made := made + 1;
        end if;
        perform know_month('sends_' || suffix, first);
        perform know_month('events_' || suffix, first);
    end loop;
    return made;
end $$;
select ensure_partitions(3);
