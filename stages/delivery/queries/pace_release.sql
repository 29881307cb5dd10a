-- Removes rates that are no longer reduced. Primary key, locked in its order.
with freed as (
    select p.tenant_id, p.sending_domain, p.receiver
    from unnest($1::uuid[], $2::text[], $3::text[]) as u (tenant_id, sending_domain, receiver)
    join paces p on p.tenant_id = u.tenant_id and p.sending_domain = u.sending_domain and p.receiver = u.receiver
    order by 1, 2, 3
    for update of p
)
delete from paces p using freed f
where p.tenant_id = f.tenant_id and p.sending_domain = f.sending_domain and p.receiver = f.receiver
