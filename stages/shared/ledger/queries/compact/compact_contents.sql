-- Folds the log of the results of transactional and sequence contents into totals of hours. $1 how many rows of the log at
-- most. Answers how many were folded.
with taken as (
    delete from content_changes c
    where c.ctid in (select ctid from content_changes order by tenant_id limit $1 for update skip locked)
    returning c.*
), totals as (
    insert into content_totals as t (tenant_id, hour, content_id, sequence_id, sent, bounced, complained, opened, opened_human,
                                     clicked, clicked_human, unsubscribed, replied, delivered, confirmed)
    select tenant_id, hour, content_id, sequence_id, sum(sent), sum(bounced), sum(complained), sum(opened), sum(opened_human),
           sum(clicked), sum(clicked_human), sum(unsubscribed), sum(replied), sum(delivered), sum(confirmed)
    from taken group by tenant_id, hour, content_id, sequence_id order by tenant_id, hour, content_id, sequence_id
    on conflict (tenant_id, hour, content_id, sequence_id) do update
    set sent = t.sent + excluded.sent, bounced = t.bounced + excluded.bounced, complained = t.complained + excluded.complained,
        opened = t.opened + excluded.opened, opened_human = t.opened_human + excluded.opened_human,
        clicked = t.clicked + excluded.clicked, clicked_human = t.clicked_human + excluded.clicked_human,
        unsubscribed = t.unsubscribed + excluded.unsubscribed, replied = t.replied + excluded.replied,
        delivered = t.delivered + excluded.delivered, confirmed = t.confirmed + excluded.confirmed
)
select count(*) as "folded!" from taken
