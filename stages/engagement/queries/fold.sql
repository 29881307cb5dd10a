-- Sets the earliest times on the sends of new facts, and answers which of them are the first of their kind.
-- $1 tenants, $2 sends, $3 months, $4 ids of the new events. Primary keys of events and sends; the batches are locked.
with facts as (
    select e.tenant_id, e.send_id, e.month,
           min(e.occurred_at) filter (where e.type = 'opened') as opened,
           min(e.occurred_at) filter (where e.type = 'clicked') as clicked,
           min(e.occurred_at) filter (where e.type = 'unsubscribed') as unsubscribed
    from (select distinct * from unnest($1::uuid[], $2::uuid[], $3::date[]) as w (tenant_id, send_id, month)) as w
    join events e on e.tenant_id = w.tenant_id and e.send_id = w.send_id and e.month = w.month
    where e.id = any ($4)
    group by e.tenant_id, e.send_id, e.month
), before as (
    select s.tenant_id, s.id, s.month, s.opened_at, s.clicked_at, s.unsubscribed_at
    from sends s
    join facts f on f.tenant_id = s.tenant_id and f.send_id = s.id and f.month = s.month
    order by s.id
    for no key update of s
), folded as (
    update sends s
    set opened_at = least(s.opened_at, f.opened),           -- least() passes over nulls
        clicked_at = least(s.clicked_at, f.clicked),
        unsubscribed_at = least(s.unsubscribed_at, f.unsubscribed)
    from facts f
    join before b on b.tenant_id = f.tenant_id and b.id = f.send_id and b.month = f.month
    where s.tenant_id = f.tenant_id and s.id = f.send_id and s.month = f.month
    returning s.tenant_id, s.id as send_id,
              b.opened_at is null and f.opened is not null as first_open,
              b.clicked_at is null and f.clicked is not null as first_click,
              b.unsubscribed_at is null and f.unsubscribed is not null as first_unsubscribe
)
select tenant_id as "tenant_id!", send_id as "send_id!", first_open as "first_open!", first_click as "first_click!",
       first_unsubscribe as "first_unsubscribe!"
from folded
