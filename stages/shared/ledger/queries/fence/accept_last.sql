-- Acceptances of mails that are the last open ones of their batches, in one statement: what `accept.sql` and `move_counters.sql` do in a
-- transaction. For such a batch nothing is left to be looked at: it is done. Where another mail is open, or a row has moved meanwhile, nothing
-- happens. $1 tenants and $2 batches in their order, which is that of every writer; $10 the shard of the totals. What is asked of a batch is
-- asked of the row that was locked, not of the statement's snapshot; the subscriptions are those of the snapshot: one that is made while
-- this waits gets the mail from a replay only. Answers the position of each that moved. Primary keys.
with locked as materialized (
    select u.position, b.tenant_id, b.id, b.kind, b.open
    from unnest($1::uuid[], $2::uuid[]) with ordinality as u (tenant_id, id, position)
    cross join lateral (
        select b.tenant_id, b.id, b.kind, b.queued + b.fenced + b.deferred as open
        from batches b where b.tenant_id = u.tenant_id and b.id = u.id for no key update of b
    ) b
), accepted as (
    update sends s
    set state = 'sent', reason = null, fence_token = null, lease_until = null, decided_at = now(), smtp_code = a.smtp_code,
        enhanced_code = a.enhanced_code, response = a.response, provider_message_id = a.provider_message_id
    from locked l
    join unnest($3::uuid[], $4::uuid[], $5::int2[], $6::text[], $7::text[], $8::text[]) with ordinality
        as a (id, token, smtp_code, enhanced_code, response, provider_message_id, position) on a.position = l.position
    where l.open = 1 and s.tenant_id = l.tenant_id and s.id = a.id and s.month = $9 and s.state = 'fenced' and s.fence_token = a.token
    returning s.tenant_id, s.id, a.position, l.id as batch_id, l.kind,
        coalesce(delivers_at_once(s.provider) and s.bounced_at is null, false) as delivered
), noted as (
    insert into outbox (tenant_id, source, month, sends, ids)
    select m.tenant_id, 'events', $9, array_agg(m.id), array_agg(m.id)
    from accepted m
    where m.tenant_id = any (array(select subscribed_tenants((select array_agg(distinct tenant_id) from accepted))))
    group by m.tenant_id
), rolled as (
    insert into rollups as r (tenant_id, hour, kind, event, shard, count)
    select m.tenant_id, date_trunc('hour', now(), 'UTC'), m.kind, e.event, $10, count(*)
    from accepted m
    cross join lateral (values ('sent', true), ('delivered', m.delivered)) as e (event, counts)
    where e.counts and m.kind <> 'test'
    group by 1, 2, 3, 4
    order by 1, 2, 3, 4
    on conflict (tenant_id, hour, kind, event, shard) do update set count = r.count + excluded.count
), finished as (
    update batches b
    set fenced = b.fenced - 1, sent = b.sent + 1, delivered = b.delivered + m.delivered::integer, state = 'done', announce_after = null,
        quiet_at = case when b.state = 'announced' then now() else b.quiet_at end, done_at = coalesce(b.done_at, now())
    from accepted m
    where b.tenant_id = m.tenant_id and b.id = m.batch_id
)
select position as "position!" from accepted
