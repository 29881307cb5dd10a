-- Notes notices that are younger than $4 seconds, to be taken in $3 seconds. $1 tenants, $2 ids. Primary key.
insert into outbox (tenant_id, source, ids, noted_at)
select n.tenant_id, 'notices', array_agg(distinct n.id), clock_timestamp() + make_interval(secs => $3)
from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
join notices n on n.tenant_id = w.tenant_id and n.id = w.id and n.recorded_at > now() - make_interval(secs => $4)
group by n.tenant_id
