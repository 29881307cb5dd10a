-- Priority batches of a resumed tenant that were set aside: they do not pass through dispatch, so they become announced, and due to be
-- announced at once. $1 tenant, $2 at most so many, the oldest first. Served by `batches_open`.
with aside as (
    select b.tenant_id, b.id
    from batches b
    where b.lane = 'priority' and b.state = 'waiting' and b.tenant_id = $1
    order by b.id
    limit $2
    for update of b skip locked
)
update batches b
set state = 'announced', announce_after = now(), quiet_at = now()
from aside a
where b.tenant_id = a.tenant_id and b.id = a.id
