-- What has proved to be missing beside what was there: clicks that are judged anew restate outcomes, events on the bus wait for the
-- bus alone, and what is rare is found without reading what is not.

-- Clicks judged anew (`postrider rescore`) are late facts, too.
alter table late_facts drop constraint late_facts_source_check;
alter table late_facts add constraint late_facts_source_check check (source in ('events', 'contacts', 'rescored'));
alter table outcomes drop constraint outcomes_credit_reason_check;
alter table outcomes add constraint outcomes_credit_reason_check
    check (credit_reason in ('first', 'changed', 'late_fact', 'contact', 'model', 'rescored'));

-- What is still to be published to products' feeds: a copy of the note, made in the transaction that takes it out of `outbox` and
-- makes deliveries of it. So webhooks never wait for the bus, and what the bus did not take is published when it is back.
create table feed_notes (
    id bigint generated always as identity primary key,
    tenant_id uuid not null,
    source text not null check (source in ('events', 'contacts', 'notices')),
    month date,                                 -- of the sends, for events
    sends uuid[],                               -- for events, parallel to ids
    ids uuid[] not null,
    noted_at timestamptz not null default clock_timestamp()
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
grant select, insert, update, delete on feed_notes to postrider_stages;

-- As in 0018; facts that were noted and that nobody was told yet are also those that wait for the bus.
create or replace function platform_webhooks() returns table (
    active bigint, failing bigint, due bigint, oldest double precision, unfanned double precision,
    delivered bigint, failed bigint, dead bigint, disabled bigint
)
language sql stable security definer set search_path from current
as $$
    select s.active, s.failing, q.due, q.oldest, o.unfanned, t.delivered, t.failed, t.dead, t.disabled
    from (select count(*) as active, count(*) filter (where failing_since < now() - interval '1 hour') as failing
          from webhook_subscriptions where status = 'active') s
    cross join (select count(*) as due, extract(epoch from now() - min(due_at))::double precision as oldest
          from (select q.due_at from webhook_queue q
                join webhook_subscriptions w on w.tenant_id = q.tenant_id and w.id = q.subscription_id and w.status = 'active'
                where q.due_at <= now() limit 10000) d) q
    cross join (select extract(epoch from now() - min(noted_at))::double precision as unfanned
          from (
              (select noted_at from outbox order by id limit 1)
              union all
              (select noted_at from feed_notes order by id limit 1)
          ) n) o
    cross join (select coalesce(sum(count) filter (where outcome = 'delivered'), 0)::bigint as delivered,
                       coalesce(sum(count) filter (where outcome = 'failed'), 0)::bigint as failed,
                       coalesce(sum(count) filter (where outcome = 'dead'), 0)::bigint as dead,
                       coalesce(sum(count) filter (where outcome = 'disabled'), 0)::bigint as disabled
          from webhook_totals where hour >= date_trunc('hour', now() - interval '1 hour', 'UTC')) t
$$;

-- Deliveries that are dead are few among those that were delivered, and are what is asked for. A list of them beside the ledger: an
-- index on its status would end the HOT updates of all the others. By trigger, so that no writer can forget it.
create table webhook_dead (
    tenant_id uuid not null,
    subscription_id uuid not null,
    created_at timestamptz not null,            -- the delivery's
    delivery_id uuid not null,
    primary key (tenant_id, subscription_id, created_at, delivery_id)
);
select wall_off('webhook_dead');
revoke insert, update, delete on webhook_dead from postrider_ingress;

create function note_dead_delivery() returns trigger
language plpgsql
as $$
begin
    if tg_op = 'UPDATE' and new.status = 'dead' then
        insert into webhook_dead (tenant_id, subscription_id, created_at, delivery_id)
        values (new.tenant_id, new.subscription_id, new.created_at, new.id) on conflict do nothing;
    else
        delete from webhook_dead d
        where d.tenant_id = old.tenant_id and d.subscription_id = old.subscription_id and d.created_at = old.created_at
          and d.delivery_id = old.id;
    end if;
    return null;
end $$;
create trigger webhook_deliveries_died after update of status on webhook_deliveries
    for each row when ((new.status = 'dead') <> (old.status = 'dead')) execute function note_dead_delivery();
create trigger webhook_deliveries_forgotten after delete on webhook_deliveries
    for each row when (old.status = 'dead') execute function note_dead_delivery();
insert into webhook_dead (tenant_id, subscription_id, created_at, delivery_id)
select tenant_id, subscription_id, created_at, id from webhook_deliveries where status = 'dead';

-- Those that wait stand in the queue, which the ingress may not read: the first so many of one subscription.
create function waiting_deliveries(of_tenant uuid, of_subscription uuid, most integer) returns setof uuid
language sql stable security definer set search_path from current
as $$
    select q.delivery_id from webhook_queue q
    where q.tenant_id = of_tenant and q.subscription_id = of_subscription
    order by q.due_at, q.delivery_id limit most
$$;
revoke execute on function waiting_deliveries(uuid, uuid, integer) from public;
grant execute on function waiting_deliveries(uuid, uuid, integer) to postrider_ingress, postrider_stages;

-- Enrollments of a sequence by what became of them. Those that are over come in here once. Those that are under way come in with
-- every step, as they do into `enrollments_due`: a list of the few that are, among a million that were, is worth that.
create index enrollments_over on enrollments (tenant_id, sequence_id, status, created_at desc, id desc)
    where status in ('completed', 'exited', 'failed');
create index enrollments_live on enrollments (tenant_id, sequence_id, created_at desc, id desc)
    where status in ('active', 'paused');
