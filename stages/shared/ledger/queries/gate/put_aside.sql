-- Sets aside the batches of paused tenants, whose rows and whose tenants' rows the caller has locked; batches of tenants that were resumed
-- meanwhile are due to be announced at once. $1 tenants, $2 batches. Primary keys.
update batches b
set state = case when t.paused_at is null then b.state else 'waiting' end,
    quiet_at = case when t.paused_at is null then b.quiet_at else now() end,
    announce_after = case when t.paused_at is null then now() end
from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
join tenants t on t.id = w.tenant_id
where b.tenant_id = w.tenant_id and b.id = w.id and b.state = 'announced' and b.fenced = 0
