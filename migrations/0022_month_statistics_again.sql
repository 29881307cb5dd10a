-- Whoever makes an index on `sends` or `events` counts the rows of all their partitions, and finds none in those whose time is
-- still to come: from then on the planner takes them for empty however full they get, until autovacuum comes by, and compares every
-- send of a campaign with every send of a batch (0013; 0020 made such an index). So a partition that has pages and is said to
-- have no rows is made known again: here, and whenever partitions are made ahead.
create or replace function know_month(partition_name text, first date) returns void
language plpgsql security definer set search_path from current
as $$
begin
    if exists (select from pg_stats where schemaname = current_schema() and tablename = partition_name and attname = 'month')
       and exists (select from pg_class where oid = to_regclass(partition_name) and (reltuples > 0 or relpages = 0))
    then
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
select ensure_partitions(3);
