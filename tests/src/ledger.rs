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

/// Counters of batches that differ from a recount of their sends, as `postrider recount` finds them. Must always be empty.
pub async fn batches_off_the_books(pool: &PgPool) -> Vec<(Uuid, String, String, i64, i64)> {
    let query = sqlx::query_as(include_str!("../../ops/cli/queries/recount_batches.sql"));
    query.bind(None::<Uuid>).fetch_all(pool).await.unwrap()
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
