-- Makes the next outcomes due of a tenant that has changed its model or windows: at most $1, in the order of their ids. A random one of
-- these tenants, so that one with many outcomes delays no other. Returns how many. Served by attribution_settings_to_restate and the key
-- of outcomes.
with asked as materialized (
    select tenant_id, restate_after from attribution_settings
    where restate_after is not null
    order by random() limit 1
    for no key update skip locked
), next as materialized (
    select o.tenant_id, o.id
    from asked a
    join outcomes o on o.tenant_id = a.tenant_id and o.id > a.restate_after
    order by o.id limit $1
    for no key update of o
), marked as (
    update outcomes o
    set credit_due = now(), credit_reason = restatement_reason(o.credit_reason, 'model')
    from next n
    where o.tenant_id = n.tenant_id and o.id = n.id
), moved as (
    update attribution_settings s set restate_after = (select n.id from next n order by n.id desc limit 1)
    from asked a where s.tenant_id = a.tenant_id
)
select count(*) as "restated!" from next
