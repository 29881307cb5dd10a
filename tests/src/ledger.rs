//! What the ledger says, asked as a superuser: tests check the books, they do not keep them.

use std::collections::BTreeMap;

use sqlx::{PgPool, Row};
use uuid::Uuid;

/// Sends of a campaign by state.
pub async fn states(pool: &PgPool, campaign: Uuid) -> BTreeMap<String, i64> {
    let query = sqlx::query_as("select state, count(*) from sends where campaign_id = $1 group by state");
    let rows: Vec<(String, i64)> = query.bind(campaign).fetch_all(pool).await.unwrap();
    rows.into_iter().collect()
}

/// Batches whose counters differ from a recount of their sends. Must always be empty.
pub async fn batches_off_the_books(pool: &PgPool) -> Vec<Uuid> {
    sqlx::query_scalar(
        "with recount as (
             select s.tenant_id, batch_of(s.id) as batch_id, count(*) as size,
                    count(*) filter (where state = 'queued') as queued,
                    count(*) filter (where state = 'fenced') as fenced, count(*) filter (where state = 'deferred') as deferred,
                    count(*) filter (where state = 'sent') as sent, count(*) filter (where state = 'failed') as failed,
                    count(*) filter (where state = 'unknown') as unknown, count(*) filter (where state = 'skipped') as skipped,
                    count(*) filter (where state = 'cancelled') as cancelled, count(*) filter (where state = 'expired') as expired,
                    count(opened_at) as opened, count(clicked_at) as clicked,
                    count(unsubscribed_at) as unsubscribed, count(bounced_at) as bounced,
                    count(counted_delivered_at(provider, state, decided_at, delivered_at, bounced_at)) as delivered,
                    count(counted_confirmed_at(provider, delivered_at, bounced_at)) as confirmed
             from sends s group by 1, 2
         )
         select b.id from batches b left join recount r on r.tenant_id = b.tenant_id and r.batch_id = b.id
         where (b.size, b.queued, b.fenced, b.deferred, b.sent, b.failed, b.unknown, b.skipped, b.cancelled, b.expired,
                b.opened, b.clicked, b.unsubscribed, b.bounced, b.delivered, b.confirmed)
               is distinct from
               (r.size, r.queued, r.fenced, r.deferred, r.sent, r.failed, r.unknown, r.skipped, r.cancelled, r.expired,
                r.opened, r.clicked, r.unsubscribed, r.bounced, r.delivered, r.confirmed)",
    )
    .fetch_all(pool)
    .await
    .unwrap()
}

/// The state and reason of each address's send in a campaign.
pub async fn by_address(pool: &PgPool, campaign: Uuid) -> BTreeMap<String, (String, Option<String>)> {
    let query = sqlx::query(
        "select c.address, s.state, s.reason from sends s
         join contacts c on c.tenant_id = s.tenant_id and c.id = s.contact_id where s.campaign_id = $1",
    );
    let rows = query.bind(campaign).fetch_all(pool).await.unwrap();
    rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect()
}
