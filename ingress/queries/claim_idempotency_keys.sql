-- Claims idempotency keys for this transaction: those that are new, or older than an answer is kept. $1 lineage of the API key, $2 keys,
-- $3 fingerprints of their requests, $4 their tenants or null, $5 hours that an answer is kept, $6 true to claim no key that another
-- transaction has claimed with this, and not to wait for it: an advisory lock for each key. In the order of the keys, so that two arrays
-- with the same ones do not deadlock.
with asked as materialized (
    select w.*,
           case when $6::boolean then pg_try_advisory_xact_lock(hashtextextended($1::uuid::text || ' ' || w.idempotency_key, 0))
                else true end as taken
    from unnest($2::text[], $3::bytea[], $4::uuid[]) as w (idempotency_key, fingerprint, tenant_id)
), claimed as (
    insert into idempotency_keys as k (key_id, idempotency_key, fingerprint, tenant_id, locked_until)
    select $1, a.idempotency_key, a.fingerprint, a.tenant_id, now()
    from asked a
    where a.taken
    order by a.idempotency_key
    on conflict (key_id, idempotency_key) do update
        set fingerprint = excluded.fingerprint, tenant_id = excluded.tenant_id, status = null, body = null, waits_for = null, created_at = now()
        where k.created_at < now() - make_interval(hours => $5)
    returning k.idempotency_key
)
select a.idempotency_key as "idempotency_key!", a.taken as "taken!", c.idempotency_key is not null as "claimed!"
from asked a
left join claimed c on c.idempotency_key = a.idempotency_key
