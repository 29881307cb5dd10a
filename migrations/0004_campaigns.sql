-- Campaigns: what is sent to which audience, A/B tests, windows, pacing, the tripwire, and the launch.

create table campaigns (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    product text not null,
    environment text not null,
    name text not null,
    sender_profile_id uuid not null,
    template_id uuid,
    subject text,
    preheader text,
    -- A body of its own, as its author wrote it: its content has it with its snippets and its layout, and the HTML of its MJML.
    body_html text,
    mjml text,
    body_text text,
    layout text,
    content_id uuid not null,                   -- what was made of it when it was stored, then at launch; batches pin it
    campaign_goal text,
    audience_mode text not null check (audience_mode in ('list', 'segment', 'tags')),
    list_id uuid,
    segment_id uuid,
    tag_ids uuid[] not null default '{}',
    message_purpose text not null,
    classification text not null check (classification in ('marketing', 'operational', 'transactional')),
    urgency text not null default 'normal',
    audience_reason text,
    status text not null default 'draft' check (status in ('draft', 'scheduled', 'sending', 'sent', 'cancelled')),
    paused boolean not null default false,
    pause_reason text,
    scheduled_for timestamptz,
    -- A time of the day in each recipient's time zone; `scheduled_for` is then when the first zone of the world reaches it.
    scheduled_for_local timestamp,
    -- An A/B test: how much of the audience it takes, the metric that decides it, and how long after its mail is out.
    test_percent smallint check (test_percent between 1 and 100),
    winner_metric text check (winner_metric in ('click_rate', 'open_rate')),
    decide_after_minutes integer check (decide_after_minutes > 0),
    tested_at timestamptz,                      -- when the test's mail was out
    winner text,                                -- of campaign_variants
    winner_reason text,
    decided_at timestamptz,
    -- The sending window. `closes_at` is set at launch: `not_after`, or null where missing it has no consequences (`on_miss` is send,
    -- or the campaign was resumed in spite of it).
    not_after timestamptz,
    on_miss text not null default 'skip' check (on_miss in ('skip', 'send', 'hold')),
    closes_at timestamptz,
    max_per_minute integer check (max_per_minute > 0),
    -- The tripwire. Resuming a campaign that tripped it disarms it.
    bounce_percent double precision not null default 5 check (bounce_percent between 0 and 100),
    complaint_percent double precision not null default 0.3 check (complaint_percent between 0 and 100),
    tripwire text not null default 'armed' check (tripwire in ('armed', 'tripped', 'disarmed')),
    launched_at timestamptz,                    -- when its audience was looked up, and the first range of it written to `sends`
    launch_prefix text,                         -- since then: common hex prefix of the ids of its sends
    month date,                                 -- since then: the partition its sends live in
    materialized_at timestamptz,                -- when the whole audience was written to `sends`
    completed_at timestamptz,
    counts jsonb,                               -- rolled up when done; before that the batches are summed
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (tenant_id, id),
    foreign key (tenant_id, sender_profile_id) references senders (tenant_id, id),
    foreign key (tenant_id, template_id) references templates (tenant_id, id),
    foreign key (tenant_id, content_id) references contents (tenant_id, id),
    foreign key (tenant_id, list_id) references audiences (tenant_id, id),
    foreign key (tenant_id, segment_id) references segments (tenant_id, id),
    constraint campaigns_one_body check (num_nonnulls(body_html, mjml) <= 1),
    constraint campaigns_test_is_whole check (num_nulls(test_percent, winner_metric, decide_after_minutes) in (0, 3))
);
create index campaigns_newest on campaigns (tenant_id, created_at desc, id desc);
create index campaigns_by_status on campaigns (tenant_id, status, created_at desc, id desc);
create index campaigns_running on campaigns (status) where status in ('sending', 'scheduled', 'cancelled') and completed_at is null;
create index campaigns_by_segment on campaigns (tenant_id, segment_id) where segment_id is not null;
-- The A/B tests that the sweep `decide_tests` has to decide.
create index campaigns_undecided on campaigns (materialized_at)
    where test_percent is not null and decided_at is null and materialized_at is not null;
-- Campaigns of a period, for the list of top messages.
create index campaigns_by_launch on campaigns (tenant_id, launched_at desc) where launched_at is not null;
-- Campaigns that may have mailed a contact within a period: for attribution, and for what arrived between soft bounces.
create index campaigns_by_end on campaigns (tenant_id, (coalesce(completed_at, 'infinity'::timestamptz))) where launched_at is not null;
select enable_row_security('campaigns');

-- The first and the last id that a send of a launch can have, by the launch's prefix (`LaunchId`).
create function first_id_of_launch(prefix text) returns uuid
language sql immutable parallel safe return (prefix || '000000000')::uuid;
create function last_id_of_launch(prefix text) returns uuid
language sql immutable parallel safe return (prefix || 'fffffffff')::uuid;

-- The versions of a campaign with an A/B test, A to H in the caller's order; what a version leaves out, it takes from the campaign.
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
    mjml text,
    body_text text,
    layout text,
    content_id uuid not null,                   -- as that of a campaign
    primary key (tenant_id, campaign_id, variant),
    constraint campaign_variants_one_body check (num_nonnulls(body_html, mjml) <= 1),
    foreign key (tenant_id, campaign_id) references campaigns (tenant_id, id),
    foreign key (tenant_id, template_id) references templates (tenant_id, id),
    foreign key (tenant_id, content_id) references contents (tenant_id, id)
);
select enable_row_security('campaign_variants');

-- The template that a mail was made from, and its version: that of its content; of lines or a body of its own, the template that its variant
-- or its campaign names. Always one row.
create function template_of_mail(of_tenant uuid, of_content uuid, of_campaign uuid, of_variant text)
returns table (template_id uuid, version integer)
language sql stable parallel safe
as $$
    select coalesce(t.template_id, v.template_id, k.template_id), t.version
    from (values (1)) one
    left join template_version_of(of_tenant, of_content) t on true
    left join campaigns k on k.tenant_id = of_tenant and k.id = of_campaign
    left join campaign_variants v on v.tenant_id = of_tenant and v.campaign_id = of_campaign and v.variant = of_variant
$$;
grant execute on function template_of_mail(uuid, uuid, uuid, text) to postrider_ingress, postrider_stages;

-- Which snippets campaigns hold: in bodies of their own, or of their variants. What a campaign has through its template is the template's.
create view campaign_snippets with (security_invoker = true) as
select own.tenant_id, own.campaign_id, u.snippet_id, u.snippet_version
from (select tenant_id, id as campaign_id, content_id from campaigns
      union all
      select tenant_id, campaign_id, content_id from campaign_variants) own
join content_snippets u on u.tenant_id = own.tenant_id and u.content_id = own.content_id
where not exists (select from template_versions t where t.tenant_id = own.tenant_id and t.content_id = own.content_id);
grant select on campaign_snippets to postrider_ingress, postrider_stages;

-- The draw of a contact in a campaign's test, from 0 to 2^32 - 1: the first four bytes of SHA-256 over both ids. It never changes,
-- so that a dry run, the launch and an explanation agree.
create function ab_draw(of_campaign uuid, of_contact uuid) returns bigint
language sql immutable parallel safe
as $$ select ('x' || left(encode(sha256(uuid_send(of_campaign) || uuid_send(of_contact)), 'hex'), 8))::bit(32)::bigint $$;
grant execute on function ab_draw(uuid, uuid) to postrider_ingress, postrider_stages;

-- An audience as it was when it was looked up, until it is written to `sends`, range by range. With a digest that is at the launch, else
-- when the campaign is due.
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
select enable_row_security('launch_audiences');

-- When the next batch of a paced campaign may be dispatched. A table of its own, because only dispatch writes it.
create table campaign_paces (
    tenant_id uuid not null,
    campaign_id uuid not null,
    next_at timestamptz not null default now(),
    primary key (tenant_id, campaign_id),
    foreign key (tenant_id, campaign_id) references campaigns (tenant_id, id)
);
select enable_row_security('campaign_paces');

-- A draft whose launch is being worked on is in preflight. The launch marks it by an advisory lock of its transaction: other
-- transactions see it at once, and it ends with the transaction, however that ends. Two campaigns whose keys are the same 32 bits
-- share a lock: a launch of one while the other is launched is refused, to be tried again.
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

-- The status of a campaign as callers see it. `preflight`: the answer of `preflight_keys`, which is asked once, not for each campaign.
create function campaign_status(campaign campaigns, preflight integer[]) returns text
language sql immutable parallel safe
as $$
    select case when campaign.status = 'draft' and preflight_key(campaign.tenant_id, campaign.id) = any (preflight)
                then 'preflight' else campaign.status end
$$;
grant execute on function campaign_status(campaigns, integer[]) to postrider_ingress, postrider_stages;
