//! A tenant's attribution settings: model and windows.

use std::collections::BTreeMap;

use schemas::AttributionModel;
use sqlx::PgConnection;
use uuid::Uuid;

/// The longest click window, in days.
pub const CLICK_DAYS_MAX: i32 = 365;
/// The longest delivery window, in days. With 0 a delivery without a click is never credited.
pub const DELIVERY_DAYS_MAX: i32 = 365;

/// Attribution model and windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How an outcome is divided between mails.
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
    /// Loads the policies of tenants. A tenant without one has the default.
    pub async fn of(db: &mut PgConnection, tenants: &[Uuid]) -> sqlx::Result<BTreeMap<Uuid, Self>> {
        let rows = sqlx::query!(
            r#"select tenant_id, model as "model: AttributionModel", click_days, delivery_days from attribution_settings
               where tenant_id = any ($1)"#,
            tenants,
        )
        .fetch_all(db)
        .await?;
        let policies = rows.into_iter().map(|row| {
            (row.tenant_id, Self { model: row.model, click_days: row.click_days, delivery_days: row.delivery_days })
        });
        Ok(policies.collect())
    }

    /// Stores the policy of a tenant. It applies to all credits that are computed from now on; the attribution stage credits all other
    /// outcomes anew.
    pub async fn set(self, db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<()> {
        sqlx::query!(
            "insert into attribution_settings (tenant_id, model, click_days, delivery_days, restate_after)
             values ($1, $2, $3, $4, '00000000-0000-0000-0000-000000000000')
             on conflict (tenant_id) do update
             set model = excluded.model, click_days = excluded.click_days, delivery_days = excluded.delivery_days,
                 restate_after = excluded.restate_after, updated_at = now()",
            tenant,
            self.model.as_str(),
            self.click_days,
            self.delivery_days,
        )
        .execute(db)
        .await
        .map(drop)
    }
}
