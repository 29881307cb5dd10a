-- `data` of the transactional requests behind these sends; `place` is the position in the arrays given.
select w.place as "place!", r.payload -> 'data' as data
from unnest($1::uuid[], $2::uuid[], $3::date[]) with ordinality as w (tenant_id, send_id, month, place)
join sends s on s.tenant_id = w.tenant_id and s.id = w.send_id and s.month = w.month
join requests r on r.tenant_id = s.tenant_id and r.id = s.request_id
