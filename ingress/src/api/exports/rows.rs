//! What is exported, slice by slice. Each slice is a range of the table's own key, tenant first.

use std::future::Future;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::ExportCursor;
use crate::pipeline::page::{as_optional_time, as_time};

/// A row of an export.
pub(super) trait ExportRow: Serialize + Send + Sync + Sized + 'static {
    /// The columns of CSV, in order.
    const COLUMNS: &'static [&'static str];

    /// Its key.
    fn cursor(&self) -> ExportCursor;

    /// The rows after a key, in the order of keys, `limit` at most.
    fn slice(
        db: &mut PgConnection,
        tenant: Uuid,
        after: ExportCursor,
        limit: i64,
    ) -> impl Future<Output = sqlx::Result<Vec<Self>>> + Send;
}

fn by_id(id: Uuid) -> ExportCursor {
    ExportCursor { first: id, second: Uuid::nil() }
}

/// A contact.
#[derive(Debug, Serialize)]
pub(super) struct ExportedContact {
    contact_id: Uuid,
    external_id: Option<String>,
    email: String,
    first_name: Option<String>,
    last_name: Option<String>,
    title: Option<String>,
    phone: Option<String>,
    company: Option<String>,
    dot_number: Option<i64>,
    timezone: Option<String>,
    locale: Option<String>,
    lifecycle_stage: Option<String>,
    fields: Value,
    status: String,
    marketing_status: String,
    source: Option<String>,
    consent_basis: Option<String>,
    #[serde(serialize_with = "as_optional_time")]
    consent_at: Option<DateTime<Utc>>,
    consent_source: Option<String>,
    #[serde(serialize_with = "as_time")]
    created_at: DateTime<Utc>,
    #[serde(serialize_with = "as_time")]
    updated_at: DateTime<Utc>,
}

impl ExportRow for ExportedContact {
    const COLUMNS: &'static [&'static str] = &[
        "contact_id",
        "external_id",
        "email",
        "first_name",
        "last_name",
        "title",
        "phone",
        "company",
        "dot_number",
        "timezone",
        "locale",
        "lifecycle_stage",
        "fields",
        "status",
        "marketing_status",
        "source",
        "consent_basis",
        "consent_at",
        "consent_source",
        "created_at",
        "updated_at",
    ];

    fn cursor(&self) -> ExportCursor {
        by_id(self.contact_id)
    }

    async fn slice(db: &mut PgConnection, tenant: Uuid, after: ExportCursor, limit: i64) -> sqlx::Result<Vec<Self>> {
        sqlx::query_as!(
            Self,
            "select id as contact_id, external_id, address as email, first_name, last_name, title, phone, company, dot_number, timezone, locale,
                    lifecycle_stage, fields, status, marketing_status, source, consent_basis, consent_at, consent_source, created_at,
                    updated_at
             from contacts where tenant_id = $1 and id > $2 and status <> 'erased' order by id limit $3",
            tenant,
            after.first,
            limit,
        )
        .fetch_all(db)
        .await
    }
}

/// A suppression.
#[derive(Debug, Serialize)]
pub(super) struct ExportedSuppression {
    suppression_id: Uuid,
    email: String,
    reason: String,
    scope: String,
    source: String,
    send_id: Option<Uuid>,
    note: Option<String>,
    #[serde(serialize_with = "as_time")]
    created_at: DateTime<Utc>,
    #[serde(serialize_with = "as_optional_time")]
    expires_at: Option<DateTime<Utc>>,
}

impl ExportRow for ExportedSuppression {
    const COLUMNS: &'static [&'static str] =
        &["suppression_id", "email", "reason", "scope", "source", "send_id", "note", "created_at", "expires_at"];

    fn cursor(&self) -> ExportCursor {
        by_id(self.suppression_id)
    }

    async fn slice(db: &mut PgConnection, tenant: Uuid, after: ExportCursor, limit: i64) -> sqlx::Result<Vec<Self>> {
        sqlx::query_as!(
            Self,
            "select id as suppression_id, address as email, reason, scope, source, send_id, note, created_at, expires_at
             from suppressions where tenant_id = $1 and id > $2 order by id limit $3",
            tenant,
            after.first,
            limit,
        )
        .fetch_all(db)
        .await
    }
}

/// A send.
#[derive(Debug, Serialize)]
pub(super) struct ExportedSend {
    send_id: Uuid,
    campaign_id: Option<Uuid>,
    contact_id: Uuid,
    email: Option<String>,
    state: String,
    reason: Option<String>,
    attempts: i16,
    provider: Option<String>,
    smtp_code: Option<i16>,
    enhanced_code: Option<String>,
    #[serde(serialize_with = "as_optional_time")]
    decided_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "as_optional_time")]
    delivered_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "as_optional_time")]
    bounced_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "as_optional_time")]
    complained_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "as_optional_time")]
    opened_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "as_optional_time")]
    clicked_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "as_optional_time")]
    replied_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "as_optional_time")]
    unsubscribed_at: Option<DateTime<Utc>>,
}

impl ExportRow for ExportedSend {
    const COLUMNS: &'static [&'static str] = &[
        "send_id",
        "campaign_id",
        "contact_id",
        "email",
        "state",
        "reason",
        "attempts",
        "provider",
        "smtp_code",
        "enhanced_code",
        "decided_at",
        "delivered_at",
        "bounced_at",
        "complained_at",
        "opened_at",
        "clicked_at",
        "replied_at",
        "unsubscribed_at",
    ];

    fn cursor(&self) -> ExportCursor {
        by_id(self.send_id)
    }

    async fn slice(db: &mut PgConnection, tenant: Uuid, after: ExportCursor, limit: i64) -> sqlx::Result<Vec<Self>> {
        sqlx::query_as!(
            Self,
            r#"select s.id as send_id, s.campaign_id, s.contact_id, c.address as "email?", s.state, s.reason, s.attempts, s.provider,
                      s.smtp_code, s.enhanced_code, s.decided_at, s.delivered_at, s.bounced_at, s.complained_at, s.opened_at,
                      s.clicked_at, s.replied_at, s.unsubscribed_at
               from (select * from sends where tenant_id = $1 and id > $2 order by id limit $3) s
               left join contacts c on c.tenant_id = s.tenant_id and c.id = s.contact_id and c.status <> 'erased'
               order by s.id"#,
            tenant,
            after.first,
            limit,
        )
        .fetch_all(db)
        .await
    }
}

/// A fact about a send.
#[derive(Debug, Serialize)]
pub(super) struct ExportedEvent {
    send_id: Uuid,
    event_id: Uuid,
    r#type: String,
    #[serde(serialize_with = "as_time")]
    occurred_at: DateTime<Utc>,
    #[serde(serialize_with = "as_time")]
    recorded_at: DateTime<Utc>,
    detail: Value,
}

impl ExportRow for ExportedEvent {
    const COLUMNS: &'static [&'static str] = &["send_id", "event_id", "type", "occurred_at", "recorded_at", "detail"];

    fn cursor(&self) -> ExportCursor {
        ExportCursor { first: self.send_id, second: self.event_id }
    }

    async fn slice(db: &mut PgConnection, tenant: Uuid, after: ExportCursor, limit: i64) -> sqlx::Result<Vec<Self>> {
        sqlx::query_as!(
            Self,
            r#"select send_id, id as event_id, type as "type", occurred_at, recorded_at, detail
               from events where tenant_id = $1 and (send_id, id) > ($2, $3) order by send_id, id limit $4"#,
            tenant,
            after.first,
            after.second,
            limit,
        )
        .fetch_all(db)
        .await
    }
}
