//! Recounts outcomes and credits. After every transaction of the stage, the stored totals equal the recount.

use sqlx::PgConnection;
use uuid::Uuid;

/// A total that differs from its recount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The tenant.
    pub tenant_id: Uuid,
    /// The name of the total: the type of outcome and the quantity.
    pub counter: String,
    /// What the total belongs to: a campaign, an hour, an outcome.
    pub of: String,
    /// The stored total.
    pub stored: i64,
    /// The recounted total.
    pub recounted: i64,
}

/// Recounts the outcomes of one tenant, or of all. Returns the differences, at most a thousand of each kind. Reads only.
pub async fn recount(db: &mut PgConnection, tenant: Option<Uuid>) -> sqlx::Result<Vec<Difference>> {
    let mut found =
        sqlx::query_file_as!(Difference, "queries/recount_campaigns.sql", tenant).fetch_all(&mut *db).await?;
    found.extend(sqlx::query_file_as!(Difference, "queries/recount_hours.sql", tenant).fetch_all(&mut *db).await?);
    found.extend(sqlx::query_file_as!(Difference, "queries/recount_outcomes.sql", tenant).fetch_all(db).await?);
    Ok(found)
}
