-- The life of a campaign: pinned audiences, A/B tests, windows, pacing, the tripwire, sends tried again.

alter table campaigns
    -- An A/B test: how much of the audience it takes, by what it is decided, and how long after its mail is out.
    add column test_percent smallint check (test_percent between 1 and 100),
    add column winner_metric text check (winner_metric in ('click_rate', 'open_rate')),
    add column decide_after_minutes integer check (decide_after_minutes > 0),
    add column tested_at timestamptz,           -- when the test's mail was out
    add column winner text,                     -- of campaign_variants
    add column winner_reason text,
    add column decided_at timestamptz,
    -- The window. `closes_at` is `not_after` where missing it has consequences that nobody has waived.
    add column not_after timestamptz,
    add column on_miss text not null default 'skip' check (on_miss in ('skip', 'send', 'hold')),
    add column closes_at timestamptz,
    add column max_per_minute integer check (max_per_minute > 0),
    -- The tripwire. Resuming a campaign that tripped it disarms it.
    add column bounce_percent double precision not null default 5 check (bounce_percent between 0 and 100),
    add column complaint_percent double precision not null default 0.3 check (complaint_percent between 0 and 100),
    add column tripwire text not null default 'armed' check (tripwire in ('armed', 'tripped', 'disarmed')),
    add constraint campaigns_test_is_whole check (num_nulls(test_percent, winner_metric, decide_after_minutes) in (0, 3));

-- What the deciding sweep looks for.
create index campaigns_undecided on campaigns (materialized_at)
    where test_percent is not null and decided_at is null and materialized_at is not null;

-- The versions of a campaign with an A/B test, A to H in the caller's order; what a version does not say, the campaign says.
create table campaign_variants (
    tenant_id uuid not null,
    campaign_id uuid not null,
    variant text not null check (variant between 'A' and 'H' and length(variant) = 1),
    name text not null,
    weight integer not null check (weight > 0),
    subject text,
    preheader text,
    template_id uuid,
    body_html text,
    content_id uuid not null,                   -- what would be rendered now; batches pin it at launch
    primary key (tenant_id, campaign_id, variant),
    foreign key (tenant_id, campaign_id) references campaigns (tenant_id, id),
    foreign key (tenant_id, template_id) references templates (tenant_id, id),
    foreign key (tenant_id, content_id) references contents (tenant_id, id)
);
select wall_off('campaign_variants');

-- The draw of a contact in a campaign's test, from 0 to 2^32 - 1: the first four bytes of SHA-256 over both ids. The same for
-- ever and everywhere, so that a dry run, the launch and an explanation agree.
create function ab_draw(of_campaign uuid, of_contact uuid) returns bigint
language sql immutable parallel safe
as $$ select ('x' || left(encode(sha256(uuid_send(of_campaign) || uuid_send(of_contact)), 'hex'), 8))::bit(32)::bigint $$;
grant execute on function ab_draw(uuid, uuid) to postrider_ingress, postrider_stages;

-- An audience as it was when it was launched, until it stands in `sends`: a launch with a digest mails these and nobody else.
create table launch_audiences (
    tenant_id uuid not null,
    campaign_id uuid not null,
    part integer not null,
    contacts uuid[] not null,
    primary key (tenant_id, campaign_id, part),
    foreign key (tenant_id, campaign_id) references campaigns (tenant_id, id)
);
-- Ids do not compress; trying costs more than half of the time.
alter table launch_audiences alter column contacts set storage external;
select wall_off('launch_audiences');

-- When the next batch of a paced campaign may be handed on. Apart from the campaign: only the handing-on writes it.
create table campaign_paces (
    tenant_id uuid not null,
    campaign_id uuid not null,
    next_at timestamptz not null default now(),
    primary key (tenant_id, campaign_id),
    foreign key (tenant_id, campaign_id) references campaigns (tenant_id, id)
);
select wall_off('campaign_paces');

--   held   the remainder of an A/B test: waits for the winner
alter table batches drop constraint batches_state_check;
alter table batches add constraint batches_state_check check (state in ('held', 'waiting', 'announced', 'resting', 'done'));
alter table batches
    add column handed integer,                  -- of a paced campaign: how many sends were handed on with it last
    add column quiet_at timestamptz;            -- when it last ceased to be announced
-- What a paced campaign has used of its minute. `quiet_at` changes with the state only, so this costs no HOT update.
create index batches_paced on batches (tenant_id, campaign_id, quiet_at) where handed is not null;

-- Which template version a content is: for the record of a send.
create index template_versions_by_content on template_versions (tenant_id, content_id);
