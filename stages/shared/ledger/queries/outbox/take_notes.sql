-- Locks and reads the oldest notes that no other fan-out has locked, until they become $1 rows or more; one at least, $2 at most. Of the
-- oldest, tenants in turn, and within a turn the small notes first, until one has waited for ten seconds: one tenant's large ones delay no
-- others, and are not delayed for ever. The locks are advisory and not on the rows: a row lock gives the transaction an id, and while that
-- lives Postgres prunes nothing that changed since. A note that was deleted a moment ago may be read once more: its events keep their ids.
-- Primary key, and `webhook_subscriptions_live`, once for each tenant.
with oldest as materialized (
    select o.id, row_number() over (partition by o.tenant_id order by o.id) as turn
    from (select id, tenant_id from outbox where noted_at <= clock_timestamp() order by id limit 4 * $2::int8) o
    order by turn, o.id
), locked as materialized (
    select id, turn from oldest where pg_try_advisory_xact_lock(hashtextextended('postrider outbox ' || id, 0)) limit $2::int8
), notes as (
    select o.*, l.turn, case when row_number() over (partition by o.tenant_id order by o.id) = 1 then (
               select count(*) from webhook_subscriptions s where s.tenant_id = o.tenant_id and s.status <> 'disabled') end as subscriptions
    from locked l join outbox o on o.id = l.id
), weighed as (
    select n.*, 1 + max(n.subscriptions) over (partition by n.tenant_id) as weight from notes n
), counted as (
    select w.*, sum(w.rows) over (
               order by w.turn, case when w.noted_at > now() - interval '10 seconds' then w.rows else 0 end, w.id) - w.rows as before
    from (select w.*, cardinality(w.ids) * w.weight as rows from weighed w) w
)
select id as "id!", tenant_id as "tenant_id!", source as "source!", month, sends as "sends?: Vec<Uuid>", ids as "ids!", weight as "weight!"
from counted where before < $1::int8
