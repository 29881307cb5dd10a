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
