-- The sends that signals name, those that there are, with when they were accepted: by the server's word, or, where none came,
-- about to be; and how far they are: settled, in doubt (a provider may know better), or undecided. $1 tenants, $2 sends, $3 months.
-- Served by the primary key; the batches are locked.
select s.tenant_id, s.id, case when s.state = 'sent' then s.decided_at else s.fenced_at end as accepted_at,
       s.state = 'unknown' or s.state in ('queued', 'deferred') and s.doubtful > 0 as "is_doubted!",
       s.state in ('queued', 'claimed', 'fenced', 'deferred') as "is_open!"
from unnest($1::uuid[], $2::uuid[], $3::date[]) as w (tenant_id, id, month)
join sends s on s.tenant_id = w.tenant_id and s.id = w.id and s.month = w.month
