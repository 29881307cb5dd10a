-- Sets the earliest times on sends, and answers which facts counted before and which count now: a send that bounces no longer counts as
-- delivered, in either order of arrival. $1 tenants, $2 sends, $3 months, then the new time of each fact: delivered, complained, opened,
-- clicked, unsubscribed, opened by a person; null: none. $10 true: all clicks were classified again, and $11 is the first human click.
-- $12 bounced, $13 replied. $14 true: all opens were classified again, and $9 is the first human open. Served by the primary key, one by
-- one and in the order of the ids (the lock in the look-up keeps it so: without statistics the planner compares all with all); the batches
-- are locked.
with reported as (
    select *
    from unnest($1::uuid[], $2::uuid[], $3::date[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[], $7::timestamptz[],
                $8::timestamptz[], $9::timestamptz[], $10::bool[], $11::timestamptz[], $12::timestamptz[],
                $13::timestamptz[], $14::bool[])
        as w (tenant_id, send_id, month, delivered, complained, opened, clicked, unsubscribed, human_opened, recounted, human_clicked,
              bounced, replied, reopened)
), before as (
    select s.tenant_id, s.id, s.month, s.delivered_at, s.complained_at, s.opened_at, s.clicked_at, s.unsubscribed_at,
           s.human_opened_at, s.human_clicked_at, s.bounced_at, s.replied_at, s.provider, s.state, s.decided_at,
           -- least() ignores nulls
           least(s.delivered_at, t.delivered) as delivered, least(s.complained_at, t.complained) as complained,
           least(s.opened_at, t.opened) as opened, least(s.clicked_at, t.clicked) as clicked,
           least(s.unsubscribed_at, t.unsubscribed) as unsubscribed, least(s.bounced_at, t.bounced) as bounced,
           least(s.replied_at, t.replied) as replied,
           case when t.reopened then t.human_opened else least(s.human_opened_at, t.human_opened) end as human_opened,
           case when t.recounted then t.human_clicked else s.human_clicked_at end as human_clicked
    from (select * from reported order by tenant_id, send_id) t
    cross join lateral (
        select s.* from sends s where s.tenant_id = t.tenant_id and s.id = t.send_id and s.month = t.month for no key update
    ) s
), folded as (
    update sends s
    set delivered_at = b.delivered, complained_at = b.complained, opened_at = b.opened, clicked_at = b.clicked,
        unsubscribed_at = b.unsubscribed, human_opened_at = b.human_opened, human_clicked_at = b.human_clicked,
        bounced_at = b.bounced, replied_at = b.replied
    from before b
    -- The months are repeated for the planner: one look-up per month seems dearer to it than all rows of all months.
    where s.tenant_id = b.tenant_id and s.id = b.id and s.month = b.month and s.month = any ($3::date[])
)
select tenant_id, id as send_id,
       array[counted_delivered_at(provider, state, decided_at, delivered_at, bounced_at), complained_at, opened_at, clicked_at,
             unsubscribed_at, human_opened_at, human_clicked_at, bounced_at, replied_at,
             counted_confirmed_at(provider, delivered_at, bounced_at)] as "before!: Vec<Option<DateTime<Utc>>>",
       array[counted_delivered_at(provider, state, decided_at, delivered, bounced), complained, opened, clicked,
             unsubscribed, human_opened, human_clicked, bounced, replied,
             counted_confirmed_at(provider, delivered, bounced)] as "after!: Vec<Option<DateTime<Utc>>>"
from before
