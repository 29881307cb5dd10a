//! The books: totals of outcomes must equal a recount of outcomes and credits, after every transaction of the stage.

use sqlx::PgConnection;
use uuid::Uuid;

/// A total that differs from its recount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The tenant.
    pub tenant_id: Uuid,
    /// Which number: the type of outcome and what of it.
    pub counter: String,
    /// Of what: a campaign, an hour, an outcome.
    pub of: String,
    /// What the total says.
    pub booked: i64,
    /// What it should say.
    pub counted: i64,
}

/// Recounts the outcomes of one tenant, or of all. Answers what differs, a thousand of each sort at most. Reads only.
///
/// # Errors
/// When Postgres is away.
pub async fn recount(db: &mut PgConnection, tenant: Option<Uuid>) -> sqlx::Result<Vec<Difference>> {
    let mut found = Vec::new();
    for row in sqlx::query_file!("queries/recount_campaigns.sql", tenant).fetch_all(&mut *db).await? {
        let of = format!("campaign {}", row.campaign_id);
        found.push(difference(row.tenant_id, row.counter, of, row.booked, row.counted));
    }
    for row in sqlx::query_file!("queries/recount_hours.sql", tenant).fetch_all(&mut *db).await? {
        let of = format!("outcomes {} {}", row.kind, row.hour.format("%Y-%m-%dT%H:00Z"));
        found.push(difference(row.tenant_id, row.counter, of, row.booked, row.counted));
    }
    for row in sqlx::query_file!("queries/recount_outcomes.sql", tenant).fetch_all(&mut *db).await? {
        let of = format!("outcome {}", row.outcome_id);
        found.push(difference(row.tenant_id, row.counter, of, row.booked, row.counted));
    }
    Ok(found)
}

fn difference(tenant_id: Uuid, counter: String, of: String, booked: i64, counted: i64) -> Difference {
    Difference { tenant_id, counter, of, booked, counted }
}
