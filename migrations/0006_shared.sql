-- What several later parts of the schema stand on.

-- Row security as in 0005, for a table made later: the ingress sees the rows of `app.tenant` only, the stages see all.
create function wall_off(tenant_table regclass) returns void
language plpgsql
as $$
begin
    execute format('alter table %s enable row level security', tenant_table);
    execute format('alter table %s force row level security', tenant_table);
    execute format(
        'create policy tenant_wall on %s to postrider_ingress using (tenant_id = (select app_tenant())) with check (tenant_id = (select app_tenant()))',
        tenant_table);
    execute format('create policy all_tenants on %s to postrider_stages using (true) with check (true)', tenant_table);
    execute format('create policy owner_migrates on %s to %I using (true) with check (true)', tenant_table, current_user);
    execute format('grant select, insert, update, delete on %s to postrider_ingress, postrider_stages', tenant_table);
end $$;
revoke execute on function wall_off(regclass) from public;

-- One-off messages are requests too.
alter table requests drop constraint requests_kind_check;
alter table requests add constraint requests_kind_check check (kind in ('campaign-launch', 'transactional', 'message'));

-- The first open and click that a person made, as far as can be told: mail programs fetch pictures and scanners follow
-- links. `opened_at` and `clicked_at` stay the first of any kind.
alter table sends add column human_opened_at timestamptz, add column human_clicked_at timestamptz;
alter table batches
    add column opened_human integer not null default 0,
    add column clicked_human integer not null default 0;

-- Which processes run which stage. Each row is renewed every few seconds and swept when it is long silent.
create table heartbeats (
    process_id uuid not null,                   -- made at start
    stage text not null,                        -- audience, …, ingress
    version text not null,
    started_at timestamptz not null default now(),
    seen_at timestamptz not null default now(),
    primary key (process_id, stage)
);
create index heartbeats_by_stage on heartbeats (stage, seen_at desc);
grant select, insert, update, delete on heartbeats to postrider_stages;
grant select, insert, update, delete on heartbeats to postrider_ingress;

-- What the delivery stage last heard from the ways out of the platform itself: one row each, renewed with every ping.
create table provider_pings (
    provider text primary key,                  -- smtp, ses, postmark, sendgrid, mailgun, resend: the platform's own connection
    ok boolean not null,
    error_code text,                            -- a code of ours, never the provider's words
    latency_ms integer,
    pinged_at timestamptz not null default now(),
    ok_at timestamptz                           -- the last time it answered
);
grant select on provider_pings to postrider_ingress;
grant select, insert, update, delete on provider_pings to postrider_stages;
