//! The books: a batch's counters must equal a recount of its sends, after every transaction of every stage.

use sqlx::{PgPool, Row};
use uuid::Uuid;

/// Batches whose counters or state differ from what their sends say, with what differs.
pub async fn faults(pool: &PgPool) -> sqlx::Result<Vec<(Uuid, String)>> {
    let rows = sqlx::query(QUERY).fetch_all(pool).await?;
    Ok(rows.iter().map(|row| (row.get("id"), row.get("difference"))).collect())
}

const QUERY: &str = r"
with recounted as (
    select b.tenant_id, b.id, jsonb_build_object(
        'size', count(s.id),
        'queued', count(*) filter (where s.state = 'queued'),
        'fenced', count(*) filter (where s.state = 'fenced'), 'deferred', count(*) filter (where s.state = 'deferred'),
        'sent', count(*) filter (where s.state = 'sent'), 'failed', count(*) filter (where s.state = 'failed'),
        'unknown', count(*) filter (where s.state = 'unknown'), 'skipped', count(*) filter (where s.state = 'skipped'),
        'cancelled', count(*) filter (where s.state = 'cancelled'), 'expired', count(*) filter (where s.state = 'expired'),
        'opened', count(s.opened_at), 'clicked', count(s.clicked_at), 'unsubscribed', count(s.unsubscribed_at),
        'opened_human', count(s.human_opened_at), 'clicked_human', count(s.human_clicked_at),
        'bounced', count(s.bounced_at), 'complained', count(s.complained_at), 'delivered', count(counted_delivered_at(s.provider, s.state, s.decided_at, s.delivered_at, s.bounced_at)),
        'confirmed', count(counted_confirmed_at(s.provider, s.delivered_at, s.bounced_at)), 'replied', count(s.replied_at)) as sends,
        min(s.next_attempt_at) filter (where s.state = 'deferred') as next
    from batches b
    left join sends s on s.tenant_id = b.tenant_id and s.month = b.month and s.id between b.id
        and last_id_of(b.id)
    group by b.tenant_id, b.id
), compared as (
    select b.tenant_id, b.id, jsonb_build_object(
        'size', b.size, 'queued', b.queued, 'fenced', b.fenced, 'deferred', b.deferred, 'sent', b.sent,
        'failed', b.failed, 'unknown', b.unknown, 'skipped', b.skipped, 'cancelled', b.cancelled, 'expired', b.expired,
        'opened', b.opened, 'clicked', b.clicked, 'unsubscribed', b.unsubscribed,
        'opened_human', b.opened_human, 'clicked_human', b.clicked_human, 'bounced', b.bounced,
        'complained', b.complained, 'delivered', b.delivered, 'confirmed', b.confirmed, 'replied', b.replied) as booked, r.sends,
        (b.state = 'done') = (b.queued + b.fenced + b.deferred = 0)
            and (b.state = 'done') = (b.done_at is not null)
            and (b.state in ('held', 'waiting', 'done')) = (b.announce_after is null)
            and (b.state <> 'resting' or b.queued + b.fenced = 0
                 -- What is due already is looked at again in a moment.
                 and b.announce_after between r.next and greatest(r.next, now() + interval '2 seconds')) as sound,
        b.state
    from batches b
    join recounted r on r.tenant_id = b.tenant_id and r.id = b.id
)
select id, format('%s: books %s, sends %s', state, booked, sends) as difference
from compared
where booked <> sends or not sound
order by tenant_id, id";
