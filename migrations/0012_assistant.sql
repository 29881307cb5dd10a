-- The assistant endpoint (specification, "Assistant endpoint"): who may ask, and what was proposed.

-- One approval binds one user and one client of an authorization server to one workspace: a tenant in its environment. It is
-- looked up before the tenant is known, so there is no row security; least privilege instead: the ingress may only read.
create table assistant_approvals (
    id uuid primary key,
    issuer text not null,
    subject text not null,                      -- the user, as the issuer's tokens name it (`sub`)
    client_id text not null,
    tenant_id uuid not null references tenants (id),
    environment text not null check (environment in ('production', 'sandbox')),
    may_draft boolean not null default false,   -- the consent of its own that saving draft proposals needs
    label text,
    created_at timestamptz not null default now(),
    expires_at timestamptz,
    revoked_at timestamptz
);
-- A user and a client stand for one workspace at a time: a token never has to choose.
create unique index assistant_approvals_live on assistant_approvals (issuer, subject, client_id) where revoked_at is null;
create index assistant_approvals_by_tenant on assistant_approvals (tenant_id, created_at desc);
grant select on assistant_approvals to postrider_ingress;
grant select, insert, update, delete on assistant_approvals to postrider_stages;

-- What an assistant proposed, for a person to read. Nothing executes a row of this table: no campaign or template points here.
create table draft_proposals (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    approval_id uuid not null references assistant_approvals (id),
    title text not null,
    campaign_goal text,
    subject text,
    preheader text,
    body text,
    audience text,                              -- whom it is meant for, in words
    notes text,
    status text not null default 'open' check (status in ('open', 'closed')),
    created_at timestamptz not null default now(),
    closed_at timestamptz,
    primary key (tenant_id, id)
);
create index draft_proposals_newest on draft_proposals (tenant_id, created_at desc, id desc);
create index draft_proposals_open on draft_proposals (tenant_id) where status = 'open';
select wall_off('draft_proposals');
-- The ingress adds proposals and counts the open ones; it neither reads nor changes what one says.
revoke select, update, delete on draft_proposals from postrider_ingress;
grant select (tenant_id, status) on draft_proposals to postrider_ingress;

-- Nonces come in the order of their time and are swept by it: a summary per block is enough, and costs an insert nothing.
drop index nonces_by_age;
create index nonces_by_age on nonces using brin (seen_at) with (pages_per_range = 16, autosummarize = on);

-- What every request of the API costs before its act: burns the nonce, counts the request in its minute, and finds the tenant
-- it names, in one round trip. Nothing is counted or found for a nonce that was seen before.
-- Nothing waits for the disk: a crash of Postgres itself can forget the nonces of the last fraction of a second.
-- The statements are by primary key whatever the tables hold, so their plans are made once (elsewhere plans are made anew).
create function admit(
    of_key uuid, given_nonce text, is_limited boolean, of_product text, of_environment text, of_tenant text
) returns table (nonce_is_fresh boolean, used_now integer, resets_in integer, linked_tenant uuid)
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
begin
    perform set_config('synchronous_commit', 'off', true);
    nonce_is_fresh := true;
    if given_nonce is not null then
        insert into nonces (key_id, nonce) values (of_key, given_nonce) on conflict do nothing;
        nonce_is_fresh := found;
    end if;
    if nonce_is_fresh and is_limited then
        insert into rate_windows as w (key_id, window_start, used) values (of_key, date_trunc('minute', now()), 1)
        on conflict (key_id, window_start) do update set used = w.used + 1
        returning w.used into used_now;
        resets_in := ceil(extract(epoch from date_trunc('minute', now()) + interval '1 minute' - now()));
    end if;
    if nonce_is_fresh and of_tenant is not null then
        select l.tenant_id into linked_tenant from tenant_links l
        where l.product = of_product and l.environment = of_environment and l.product_tenant_id = of_tenant;
    end if;
    return next;
end $$;
revoke execute on function admit(uuid, text, boolean, text, text, text) from public;
grant execute on function admit(uuid, text, boolean, text, text, text) to postrider_ingress;
