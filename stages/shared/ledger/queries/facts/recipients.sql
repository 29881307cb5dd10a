-- The contacts of these sends, by primary key. $1 tenants, $2 sends, $3 months.
select w.tenant_id as "tenant_id!", w.id as "send_id!", s.contact_id as "contact_id!"
from unnest($1::uuid[], $2::uuid[], $3::date[]) as w (tenant_id, id, month)
cross join lateral (
    select s.contact_id from sends s where s.tenant_id = w.tenant_id and s.id = w.id and s.month = w.month offset 0
) s
