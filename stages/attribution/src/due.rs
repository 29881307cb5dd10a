//! The outcomes whose credit is due.

use chrono::{DateTime, Utc};
use schemas::AttributionModel;
use sqlx::PgConnection;
use uuid::Uuid;

/// An outcome whose credit is due, with its row locked.
#[derive(Debug)]
pub(crate) struct DueOutcome {
    pub(crate) tenant_id: Uuid,
    pub(crate) id: Uuid,
    pub(crate) contact_email: Option<String>,
    pub(crate) dot_number: Option<i64>,
    /// Of a contact that was merged while the outcome was recorded, the one that is left.
    pub(crate) contact_id: Option<Uuid>,
    pub(crate) contact_key: Option<String>,
    pub(crate) outcome_type: String,
    pub(crate) premium: Option<i64>,
    pub(crate) value_cents: Option<i64>,
    pub(crate) occurred_at: DateTime<Utc>,
    pub(crate) credit_reason: String,
    /// Since its last report.
    pub(crate) age_minutes: i32,
    pub(crate) revision: i32,
    pub(crate) booked_type: Option<String>,
    pub(crate) booked_hour: Option<DateTime<Utc>>,
    pub(crate) booked_premium: Option<i64>,
    pub(crate) booked_value_cents: Option<i64>,
    /// How it is credited now; `None` before the first credit.
    pub(crate) model: Option<AttributionModel>,
    pub(crate) click_days: Option<i32>,
    pub(crate) delivery_days: Option<i32>,
    pub(crate) rule: Option<String>,
}

/// Locks and loads those of these outcomes that are due.
pub(crate) async fn load_due(
    db: &mut PgConnection,
    (tenants, ids): (Vec<Uuid>, Vec<Uuid>),
) -> sqlx::Result<Vec<DueOutcome>> {
    sqlx::query_as!(
        DueOutcome,
        r#"select o.tenant_id, o.id, o.contact_email, o.dot_number, o.contact_key, o.outcome_type, o.premium,
                o.value_cents, o.occurred_at, o.credit_reason, floor(extract(epoch from now() - o.updated_at) / 60)::int as "age_minutes!", o.revision, o.booked_type, o.booked_hour, o.booked_premium,
                o.booked_value_cents, o.model as "model: AttributionModel", o.click_days, o.delivery_days, o.rule,
                coalesce((select c.merged_into from contacts c where c.tenant_id = o.tenant_id and c.id = o.contact_id), o.contact_id)
                    as contact_id
         from (select distinct * from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)) w
         join outcomes o on o.tenant_id = w.tenant_id and o.id = w.id
         where o.credit_due is not null
         order by o.tenant_id, o.id for no key update of o skip locked"#,
        &tenants,
        &ids,
    )
    .fetch_all(db)
    .await
}
