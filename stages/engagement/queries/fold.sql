-- Sets the earliest times on sends, and answers what stood there before. $1 tenants, $2 sends, $3 months, then when each is now
-- told to have been opened, clicked and unsubscribed from; null: not told. Served by the primary key; the batches are locked.
with told as (
    select *
    from unnest($1::uuid[], $2::uuid[], $3::date[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[])
        as w (tenant_id, send_id, month, opened, clicked, unsubscribed)
), before as (
    select s.tenant_id, s.id, s.month, s.opened_at, s.clicked_at, s.unsubscribed_at, t.opened, t.clicked, t.unsubscribed
    from told t
    join sends s on s.tenant_id = t.tenant_id and s.id = t.send_id and s.month = t.month
    order by s.tenant_id, s.id
    for no key update of s
), folded as (
    update sends s
    set opened_at = least(s.opened_at, b.opened),           -- least() passes over nulls
        clicked_at = least(s.clicked_at, b.clicked),
        unsubscribed_at = least(s.unsubscribed_at, b.unsubscribed)
    from before b
    where s.tenant_id = b.tenant_id and s.id = b.id and s.month = b.month
)
select tenant_id, id as send_id, opened_at, clicked_at, unsubscribed_at from before
