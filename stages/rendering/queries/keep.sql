-- Stores renditions, and skeletons that only one message uses. Existing rows stay unchanged.
-- $1 tenants, $2 sends, $3 renditions, $4 tenants, $5 and $6 their skeletons, $7 whether the commit waits for the disk: set here, as the
-- only statement of its transaction, it spares two round trips.
with own_skeletons as (
    insert into skeletons (tenant_id, id, body)
    select * from unnest($4::uuid[], $5::text[], $6::jsonb[])
    order by 1, 2
    on conflict do nothing
)
insert into renditions (tenant_id, send_id, rendered)
select w.*
from unnest($1::uuid[], $2::uuid[], $3::bytea[]) as w (tenant_id, send_id, rendered)
where set_config('synchronous_commit', $7, true) = $7
order by 1, 2
on conflict do nothing
