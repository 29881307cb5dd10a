-- Retention: whole months of the ledger are detached and dropped, all else goes in slices (`audience::retention` has the list).

-- Months whose sends and events are gone. Batches of campaigns stay, with their counters: a recount leaves these months out.
create table dropped_months (
    month date primary key,
    dropped_at timestamptz not null default now()
);
grant select on dropped_months to postrider_ingress, postrider_stages;

-- The smallest id that begins with this time: ids of the ledger are ordered by time.
create function first_id_at(moment timestamptz) returns uuid
language sql immutable parallel safe
as $$ select (lpad(to_hex((extract(epoch from moment) * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid $$;

-- The oldest month there is a partition for; null without any.
create function oldest_ledger_month() returns date
language sql stable
as $$
    select min(to_date(right(c.relname, 7), 'YYYY_MM'))
    from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'sends'::regclass
$$;

-- Takes one step towards a ledger without the months that ended before `keep_from`, and answers the month it was about; null when
-- there is nothing to do. A month with a batch that is still open stays. Detaching needs the whole table for a moment: it waits
-- two seconds for that, and otherwise fails and is tried again. Dropping, which takes as long as the files are large, is a step of
-- its own and locks nothing that anybody uses.
create function drop_ledger_month(keep_from date) returns date
language plpgsql security definer set search_path from current set lock_timeout = '2s'
as $$
declare
    old date;
    suffix text;
    detached text;
begin
    perform pg_advisory_xact_lock(hashtext('postrider ensure_partitions'));
    select c.relname into detached
    from pg_class c
    where c.relnamespace = (select p.relnamespace from pg_class p where p.oid = 'sends'::regclass)
      and c.relkind = 'r' and not c.relispartition and c.relname ~ '^(sends|events)_[0-9]{4}_[0-9]{2}$'
    order by c.relname limit 1;
    if detached is not null then
        execute format('drop table %I', detached);
        return to_date(right(detached, 7), 'YYYY_MM');
    end if;
    old := oldest_ledger_month();
    if old is null or old >= keep_from or old + interval '1 month' > keep_from then
        return null;
    end if;
    if exists (select from batches b where b.state <> 'done' and b.month = old) then
        return null;
    end if;
    suffix := to_char(old, 'YYYY_MM');
    execute format('alter table sends detach partition %I', 'sends_' || suffix);
    if to_regclass('events_' || suffix) is not null then
        execute format('alter table events detach partition %I', 'events_' || suffix);
    end if;
    insert into dropped_months (month) values (old) on conflict do nothing;
    return old;
end $$;
revoke execute on function drop_ledger_month(date) from public;
grant execute on function drop_ledger_month(date) to postrider_stages;
grant execute on function oldest_ledger_month() to postrider_ingress, postrider_stages;

-- What the sweep finds old rows by, where no index did already.
create index requests_by_age on requests (tenant_id, received_at) where announce_after is null;
create index contents_to_empty on contents (tenant_id, id) where kind = 'one_off' and body_html <> '';
create index outcome_restatements_by_age on outcome_restatements (tenant_id, restated_at);
grant delete on audit_log to postrider_stages;
