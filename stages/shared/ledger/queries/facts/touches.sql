-- All opens and clicks of these sends, with the data their marks follow from. $1 tenants, $2 sends, $3 months. A range of the key for
-- each.
select e.tenant_id, e.send_id, e.id, e.type = 'clicked' as "click!", e.occurred_at,
       coalesce((e.detail ->> 'link')::integer, -1) as "link!", e.detail ->> 'ip' as ip, e.detail ->> 'user_agent' as user_agent,
       coalesce((e.detail ->> 'is_machine')::boolean, false) as "machine!", e.detail ->> 'machine_reason' as reason,
       coalesce((e.detail ->> 'rules')::integer, 0) as "version!"
from unnest($1::uuid[], $2::uuid[], $3::date[]) as w (tenant_id, send_id, month)
cross join lateral (
    select e.* from events e where e.tenant_id = w.tenant_id and e.send_id = w.send_id and e.month = w.month offset 0
) e
where e.type in ('opened', 'clicked')
order by e.tenant_id, e.send_id, e.id
