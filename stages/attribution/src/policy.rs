//! How a tenant's outcomes are credited.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use schemas::AttributionModel;
use sqlx::PgConnection;
use uuid::Uuid;

/// The longest click window, in days.
pub const CLICK_DAYS_MAX: i32 = 365;
/// The longest delivery window, in days; 0: what was only delivered is never credited.
pub const DELIVERY_DAYS_MAX: i32 = 365;

/// Model and windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How an outcome is divided.
    pub model: AttributionModel,
    /// How many days before the outcome a click counts.
    pub click_days: i32,
    /// How many days before the outcome a delivery counts, where there is no click.
    pub delivery_days: i32,
}

impl Default for Policy {
    fn default() -> Self {
        Self { model: AttributionModel::LastTouch, click_days: 30, delivery_days: 7 }
    }
}

impl Policy {
    /// Those of tenants; who is not in the answer has the default.
    ///
    /// # Errors
    /// When Postgres is away.
    pub async fn of(db: &mut PgConnection, tenants: &[Uuid]) -> sqlx::Result<BTreeMap<Uuid, Self>> {
        let rows = sqlx::query!(
            r#"select tenant_id, model as "model: AttributionModel", click_days, delivery_days from attribution_settings
               where tenant_id = any ($1)"#,
            tenants,
        )
        .fetch_all(db)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| {
                let policy = Self { model: row.model, click_days: row.click_days, delivery_days: row.delivery_days };
                (row.tenant_id, policy)
            })
            .collect())
    }

    /// Makes it a tenant's. Outcomes that are looked at from now on follow it.
    ///
    /// # Errors
    /// When Postgres is away.
    pub async fn set(self, db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<()> {
        sqlx::query!(
            "insert into attribution_settings (tenant_id, model, click_days, delivery_days) values ($1, $2, $3, $4)
             on conflict (tenant_id) do update
             set model = excluded.model, click_days = excluded.click_days, delivery_days = excluded.delivery_days,
                 updated_at = now()",
            tenant,
            self.model.as_str(),
            self.click_days,
            self.delivery_days,
        )
        .execute(db)
        .await
        .map(drop)
    }

    /// Has a tenant's outcomes since then credited anew. Answers how many there are.
    ///
    /// # Errors
    /// When Postgres is away.
    pub async fn restate(db: &mut PgConnection, tenant: Uuid, since: DateTime<Utc>) -> sqlx::Result<u64> {
        let restated = sqlx::query!(
            "with asked as (
                 select id from outcomes where tenant_id = $1 and occurred_at >= $2 order by id for no key update
             )
             update outcomes o set credit_due = now(), credit_reason = 'model' from asked
             where o.tenant_id = $1 and o.id = asked.id",
            tenant,
            since,
        )
        .execute(db)
        .await?;
        Ok(restated.rows_affected())
    }
}
