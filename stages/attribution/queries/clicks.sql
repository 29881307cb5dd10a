-- The human clicks on these mails. $1 tenants, $2 sends, $3 months, $4 since when. A range of the key for each; which campaign it was says
-- the batch.
select w.tenant_id as "tenant_id!", w.send_id as "send_id!", e.id as "event_id!", e.occurred_at as "at!", e.detail ->> 'url' as url,
       (e.detail ->> 'link')::integer as link_id, b.kind as "kind!: MessageKind", b.campaign_id
from unnest($1::uuid[], $2::uuid[], $3::date[], $4::timestamptz[]) as w (tenant_id, send_id, month, since)
cross join lateral (
    select e.id, e.occurred_at, e.detail from events e
    where e.tenant_id = w.tenant_id and e.send_id = w.send_id and e.month = w.month and e.type = 'clicked'
      and e.occurred_at > w.since and not coalesce((e.detail ->> 'is_machine')::boolean, false)
    offset 0
) e
cross join lateral (
    select b.kind, b.campaign_id from batches b where b.tenant_id = w.tenant_id and b.id = batch_of(w.send_id) offset 0
) b
