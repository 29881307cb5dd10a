//! Outcomes as they are read. They are written by [`ledger::outcomes::record`], their credits by the attribution stage.

use chrono::{DateTime, Utc};
use schemas::{MessageKind, OutcomeType};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::pipeline::ListPage;

/// An outcome.
#[derive(Debug)]
pub(super) struct OutcomeRow {
    pub(super) id: Uuid,
    pub(super) source_system: String,
    pub(super) source_event_id: Option<String>,
    pub(super) contact_email: Option<String>,
    pub(super) dot_number: Option<i64>,
    pub(super) contact_id: Option<Uuid>,
    pub(super) contact_key: Option<String>,
    pub(super) outcome_type: OutcomeType,
    pub(super) premium: Option<i64>,
    pub(super) value_cents: Option<i64>,
    pub(super) occurred_at: DateTime<Utc>,
    pub(super) created_at: DateTime<Utc>,
    pub(super) updated_at: DateTime<Utc>,
    pub(super) is_pending: bool,
    pub(super) revision: i32,
    pub(super) model: Option<String>,
    pub(super) click_days: Option<i32>,
    pub(super) delivery_days: Option<i32>,
    pub(super) rule: Option<String>,
    pub(super) credited_at: Option<DateTime<Utc>>,
}

/// Which outcomes a list shows.
#[derive(Debug, Default)]
pub(super) struct OutcomeFilter {
    pub(super) contact: Option<Uuid>,
    /// Credited to it.
    pub(super) campaign: Option<Uuid>,
    pub(super) outcome_type: Option<OutcomeType>,
    /// That happened since.
    pub(super) since: Option<DateTime<Utc>>,
}

pub(super) async fn list(
    db: &mut PgConnection,
    tenant: Uuid,
    filter: &OutcomeFilter,
    page: &ListPage,
) -> sqlx::Result<Vec<OutcomeRow>> {
    sqlx::query_file_as!(
        OutcomeRow,
        "queries/outcomes.sql",
        tenant,
        None::<Uuid>,
        filter.contact,
        filter.campaign,
        filter.outcome_type.map(OutcomeType::as_str),
        filter.since,
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(db)
    .await
}

pub(super) async fn get(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Option<OutcomeRow>> {
    sqlx::query_file_as!(
        OutcomeRow,
        "queries/outcomes.sql",
        tenant,
        Some(id),
        None::<Uuid>,
        None::<Uuid>,
        None::<&str>,
        None::<DateTime<Utc>>,
        None::<DateTime<Utc>>,
        None::<Uuid>,
        1,
    )
    .fetch_optional(db)
    .await
}

/// A mail an outcome is credited to.
#[derive(Debug)]
pub(super) struct CreditRow {
    pub(super) send_id: Uuid,
    pub(super) kind: MessageKind,
    pub(super) campaign_id: Option<Uuid>,
    pub(super) sequence_id: Option<Uuid>,
    pub(super) contact_id: Uuid,
    pub(super) share: i32,
    pub(super) premium: Option<i64>,
    pub(super) value_cents: Option<i64>,
    pub(super) rule: Option<String>,
    pub(super) touched_at: DateTime<Utc>,
    pub(super) evidence: Value,
}

/// Those of an outcome, the latest touch first.
pub(super) async fn credits(db: &mut PgConnection, tenant: Uuid, outcome: Uuid) -> sqlx::Result<Vec<CreditRow>> {
    sqlx::query_as!(
        CreditRow,
        r#"select c.send_id, c.kind as "kind: MessageKind", c.campaign_id, s.sequence_id as "sequence_id?", c.contact_id, c.share,
                  c.premium, c.value_cents, o.rule, c.touched_at, c.evidence
           from outcomes o
           join outcome_credits c on c.tenant_id = o.tenant_id and c.outcome_id = o.id
           left join sequence_sends s on s.tenant_id = c.tenant_id and s.send_id = c.send_id
           where o.tenant_id = $1 and o.id = $2
           order by c.touched_at desc, c.send_id desc"#,
        tenant,
        outcome,
    )
    .fetch_all(db)
    .await
}

/// A credit as it was set once.
#[derive(Debug)]
pub(super) struct RestatementRow {
    pub(super) revision: i32,
    pub(super) restated_at: DateTime<Utc>,
    pub(super) reason: String,
    pub(super) rule: Option<String>,
    pub(super) model: String,
    pub(super) click_days: i32,
    pub(super) delivery_days: i32,
    pub(super) credits: Value,
}

/// How often a credit is shown to have been set: the newest.
pub(super) const RESTATEMENTS_MAX: i64 = 100;

/// Those of an outcome, the present one first.
pub(super) async fn restatements(
    db: &mut PgConnection,
    tenant: Uuid,
    outcome: Uuid,
) -> sqlx::Result<Vec<RestatementRow>> {
    sqlx::query_as!(
        RestatementRow,
        "select revision, restated_at, reason, rule, model, click_days, delivery_days, credits from outcome_restatements
         where tenant_id = $1 and outcome_id = $2 order by revision desc limit $3",
        tenant,
        outcome,
        RESTATEMENTS_MAX,
    )
    .fetch_all(db)
    .await
}
