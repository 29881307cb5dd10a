-- Segments: audiences by rule. And what they stand on: who did what with mail, by contact.

create table segments (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    name text not null,
    description text,
    rule jsonb not null,                        -- as its author wrote it, checked; read again whenever it is evaluated
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    deleted_at timestamptz,                     -- campaigns of the past keep their reference
    primary key (tenant_id, id)
);
create unique index segments_by_name on segments (tenant_id, name) where deleted_at is null;
create index segments_newest on segments (tenant_id, created_at desc, id desc) where deleted_at is null;
select wall_off('segments');

-- Which segments a segment's rule names (`in_segment`).
create table segment_uses (
    tenant_id uuid not null,
    segment_id uuid not null,
    uses uuid not null,
    primary key (tenant_id, segment_id, uses),
    foreign key (tenant_id, segment_id) references segments (tenant_id, id),
    foreign key (tenant_id, uses) references segments (tenant_id, id)
);
create index segment_uses_by_used on segment_uses (tenant_id, uses);
select wall_off('segment_uses');

alter table campaigns add foreign key (tenant_id, segment_id) references segments (tenant_id, id);
create index campaigns_by_segment on campaigns (tenant_id, segment_id) where segment_id is not null;

-- The rare facts about sends (opened, clicked, bounced, complained, unsubscribed), by contact: one row for each send and
-- fact. Segments ask "who clicked in the last 30 days", and `sends` has no index that answers it: one by contact would cost
-- the campaign's insert rate, and reading all sends takes seconds for each million. Facts that nearly every send has (sent,
-- delivered) are read from `sends`.
create table contact_facts (
    tenant_id uuid not null,
    send_id uuid not null,
    fact text not null,                         -- opened, clicked, bounced, complained, unsubscribed
    contact_id uuid not null,
    occurred_at timestamptz not null,           -- the first time, as on the send
    human_at timestamptz,                       -- the first time by a person; opened and clicked only
    primary key (tenant_id, send_id, fact)      -- a campaign's sends are one range of ids
);
create index contact_facts_by_time on contact_facts (tenant_id, fact, occurred_at);
create index contact_facts_by_human on contact_facts (tenant_id, fact, human_at) where human_at is not null;
select wall_off('contact_facts');

-- A trigger, because the facts on `sends` have several writers (engagement, delivery, provider events) and must not come
-- apart from this table: no writer can forget it. Only columns of facts fire it, and only when one changed, so that what a
-- campaign does to every send (claim, fence, result) pays a comparison and no more.
-- Its own plan_cache_mode: the pools plan every statement anew, which here would cost more than the insert.
create function note_contact_facts() returns trigger
language plpgsql set plan_cache_mode = auto
as $$
begin
    insert into contact_facts as known (tenant_id, send_id, fact, contact_id, occurred_at, human_at)
    select new.tenant_id, new.id, told.fact, new.contact_id, told.at, told.human_at
    from (values
        ('opened', old.opened_at, new.opened_at, old.human_opened_at, new.human_opened_at),
        ('clicked', old.clicked_at, new.clicked_at, old.human_clicked_at, new.human_clicked_at),
        ('bounced', old.bounced_at, new.bounced_at, null, null),
        ('complained', old.complained_at, new.complained_at, null, null),
        ('unsubscribed', old.unsubscribed_at, new.unsubscribed_at, null, null)
    ) as told (fact, before, at, human_before, human_at)
    where told.at is not null and (told.at is distinct from told.before or told.human_at is distinct from told.human_before)
    on conflict (tenant_id, send_id, fact) do update set occurred_at = excluded.occurred_at, human_at = excluded.human_at;
    -- A fact that is taken back, as when a failed send is tried again.
    if (new.opened_at is null and old.opened_at is not null) or (new.clicked_at is null and old.clicked_at is not null)
       or (new.bounced_at is null and old.bounced_at is not null) or (new.complained_at is null and old.complained_at is not null)
       or (new.unsubscribed_at is null and old.unsubscribed_at is not null) then
        delete from contact_facts gone
        where gone.tenant_id = new.tenant_id and gone.send_id = new.id
          and case gone.fact
                  when 'opened' then new.opened_at is null
                  when 'clicked' then new.clicked_at is null
                  when 'bounced' then new.bounced_at is null
                  when 'complained' then new.complained_at is null
                  when 'unsubscribed' then new.unsubscribed_at is null
              end;
    end if;
    return null;
end $$;

create trigger sends_note_facts
    after update of opened_at, clicked_at, bounced_at, complained_at, unsubscribed_at, human_opened_at, human_clicked_at
    on sends for each row
    when (row (new.opened_at, new.clicked_at, new.bounced_at, new.complained_at, new.unsubscribed_at, new.human_opened_at, new.human_clicked_at)
          is distinct from
          row (old.opened_at, old.clicked_at, old.bounced_at, old.complained_at, old.unsubscribed_at, old.human_opened_at, old.human_clicked_at))
    execute function note_contact_facts();

insert into contact_facts (tenant_id, send_id, fact, contact_id, occurred_at, human_at)
select s.tenant_id, s.id, f.fact, s.contact_id, f.at, f.human_at
from sends s
cross join lateral (values
    ('opened', s.opened_at, s.human_opened_at),
    ('clicked', s.clicked_at, s.human_clicked_at),
    ('bounced', s.bounced_at, null),
    ('complained', s.complained_at, null),
    ('unsubscribed', s.unsubscribed_at, null)
) as f (fact, at, human_at)
where f.at is not null;

-- The few archived contacts of many, newest first.
create index contacts_archived on contacts (tenant_id, created_at desc, id desc) where status = 'archived';
