-- Notes notices and facts about sends that are younger than $4 seconds, to be taken in $3 seconds. Notices: $1 tenants, $2 ids; facts:
-- $5 tenants, $6 sends, $7 ids, $8 months. Primary keys.
insert into outbox (tenant_id, source, month, sends, ids, noted_at)
select u.tenant_id, u.source, u.month, array_agg(u.send_id) filter (where u.send_id is not null), array_agg(u.id),
       clock_timestamp() + make_interval(secs => $3)
from (
    select n.tenant_id, 'notices' as source, null::date as month, null::uuid as send_id, n.id
    from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
    join notices n on n.tenant_id = w.tenant_id and n.id = w.id and n.recorded_at > now() - make_interval(secs => $4)
    union
    select e.tenant_id, 'events', e.month, e.send_id, e.id
    from unnest($5::uuid[], $6::uuid[], $7::uuid[], $8::date[]) as w (tenant_id, send_id, id, month)
    join events e on e.tenant_id = w.tenant_id and e.send_id = w.send_id and e.id = w.id and e.month = w.month
                 and e.recorded_at > now() - make_interval(secs => $4)
) u
group by u.tenant_id, u.source, u.month
