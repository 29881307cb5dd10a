-- A draft whose launch is being worked on is in preflight. The launch says so by an advisory lock of its transaction: everybody sees
-- it at once, and it ends with the transaction, however that ends. Two campaigns whose keys are the same 32 bits share a lock: a
-- launch of one while the other is launched is told to come again.
create function preflight_class() returns integer
language sql immutable parallel safe
as $$ select 7209 $$;
create function preflight_key(tenant uuid, campaign uuid) returns integer
language sql immutable parallel safe
as $$ select hashtext(tenant::text || campaign::text) $$;

-- Takes the launch of a campaign for this transaction. False: another transaction works on one.
create function begin_preflight(tenant uuid, campaign uuid) returns boolean
language sql volatile
as $$ select pg_try_advisory_xact_lock(preflight_class(), preflight_key(tenant, campaign)) $$;

-- The keys of the launches that other transactions work on. (`pg_locks` shows the two numbers of a key as unsigned ones.)
create function preflight_keys() returns integer[]
language sql volatile
as $$
    select coalesce(array_agg((l.objid::bigint - case when l.objid::bigint > 2147483647 then 4294967296 else 0 end)::integer), '{}')
    from pg_locks l
    where l.locktype = 'advisory' and l.classid = preflight_class()::oid and l.objsubid = 2 and l.granted
      and l.pid <> pg_backend_pid()
      and l.database = (select d.oid from pg_database d where d.datname = current_database())
$$;
