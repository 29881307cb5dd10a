-- What counts as delivered: confirmed where the route can confirm, otherwise accepted by the receiving server, and in both cases
-- not bounced later. `delivered` counts both; `confirmed` counts those that a provider has confirmed.

-- True where the route is the receiving server's own SMTP session, a relay or the sandbox: acceptance is all there is to know. An
-- HTTP provider accepts a mail and reports its delivery later. As `schemas::events::delivers_at_once`.
create function delivers_at_once(provider text) returns boolean
language sql immutable parallel safe
as $$ select provider in ('smtp', 'capture') $$;

-- Since when a send counts as delivered; null while it does not.
create function counted_delivered_at(
    provider text, state text, decided_at timestamptz, delivered_at timestamptz, bounced_at timestamptz
) returns timestamptz
language sql immutable parallel safe
as $$
    select case
        when bounced_at is not null then null
        when delivers_at_once(provider) then case when state = 'sent' then decided_at end
        else delivered_at
    end
$$;

-- Since when a provider has confirmed a send that has not bounced; null while none has.
create function counted_confirmed_at(provider text, delivered_at timestamptz, bounced_at timestamptz) returns timestamptz
language sql immutable parallel safe
as $$ select case when bounced_at is null and delivers_at_once(provider) is not true then delivered_at end $$;

alter table batches add column confirmed integer not null default 0;
alter table content_changes
    add column delivered integer not null default 0,
    add column confirmed integer not null default 0;
alter table content_totals
    add column delivered bigint not null default 0,
    add column confirmed bigint not null default 0;

-- As in 0020, with `delivered` and `confirmed`.
create or replace function note_content_changes() returns trigger
language plpgsql
as $$
begin
    insert into content_changes (tenant_id, hour, content_id, sequence_id, sent, bounced, complained, opened, opened_human, clicked,
                                 clicked_human, unsubscribed, replied, delivered, confirmed)
    select n.tenant_id, date_trunc('hour', now(), 'UTC'), n.content_id,
           coalesce(s.sequence_id, '00000000-0000-0000-0000-000000000000'), sum(n.sent - o.sent), sum(n.bounced - o.bounced),
           sum(n.complained - o.complained), sum(n.opened - o.opened), sum(n.opened_human - o.opened_human),
           sum(n.clicked - o.clicked), sum(n.clicked_human - o.clicked_human), sum(n.unsubscribed - o.unsubscribed),
           sum(n.replied - o.replied), sum(n.delivered - o.delivered), sum(n.confirmed - o.confirmed)
    from after_it n
    join before_it o on o.tenant_id = n.tenant_id and o.id = n.id
    left join lateral (
        select q.sequence_id from sequence_sends q where n.kind = 'sequence' and q.tenant_id = n.tenant_id and q.send_id = n.id
        offset 0
    ) s on true
    where n.kind in ('transactional', 'sequence')
      and (n.sent, n.bounced, n.complained, n.opened, n.opened_human, n.clicked, n.clicked_human, n.unsubscribed, n.replied,
           n.delivered, n.confirmed)
          <> (o.sent, o.bounced, o.complained, o.opened, o.opened_human, o.clicked, o.clicked_human, o.unsubscribed, o.replied,
              o.delivered, o.confirmed)
    group by n.tenant_id, n.content_id, s.sequence_id;
    return null;
end $$;
