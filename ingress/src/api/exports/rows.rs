//! What is exported, slice by slice. Each slice is a range of the table's own key, tenant first.

use std::future::Future;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{ExportCursor, ExportSlice};
use crate::pipeline::page::{as_optional_time, as_time};

/// A row of an export.
pub(super) trait ExportRow: Serialize + Send + Sync + Sized + 'static {
    /// What is exported, as the path says it.
    const NAME: &'static str;
    /// The columns of CSV, in order.
    const COLUMNS: &'static [&'static str];

    /// Its key.
    fn cursor(&self) -> ExportCursor;

    /// The rows of a slice, in the order of keys.
    fn slice(db: &mut PgConnection, slice: ExportSlice) -> impl Future<Output = sqlx::Result<Vec<Self>>> + Send;
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
    consent_description: Option<String>,
    /// When the person opted in.
    #[serde(serialize_with = "as_optional_time")]
    opted_in_at: Option<DateTime<Utc>>,
    /// By name.
    lists: Vec<String>,
    tags: Vec<String>,
    #[serde(serialize_with = "as_time")]
    created_at: DateTime<Utc>,
    #[serde(serialize_with = "as_time")]
    updated_at: DateTime<Utc>,
}

impl ExportRow for ExportedContact {
    const NAME: &'static str = "contacts";
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
        "consent_description",
        "opted_in_at",
        "lists",
        "tags",
        "created_at",
        "updated_at",
    ];

    fn cursor(&self) -> ExportCursor {
        by_id(self.contact_id)
    }

    async fn slice(db: &mut PgConnection, slice: ExportSlice) -> sqlx::Result<Vec<Self>> {
        sqlx::query_as!(
            Self,
            r#"select c.id as contact_id, c.external_id, c.address as email, c.first_name, c.last_name, c.title, c.phone, c.company,
                      c.dot_number, c.timezone, c.locale, c.lifecycle_stage, fields_shown($1, c.fields) as "fields!", c.status,
                      c.marketing_status, c.source, c.consent_basis, c.consent_at, c.consent_source, c.consent_description, c.opted_in_at, m.lists as "lists!",
                      m.tags as "tags!", c.created_at, c.updated_at
               from (select * from contacts where tenant_id = $1 and id > $2 and status <> 'erased' order by id limit $3) c
               cross join lateral (
                   select coalesce(array_agg(a.name order by a.name) filter (where a.kind = 'list'), '{}') as lists,
                          coalesce(array_agg(a.name order by a.name) filter (where a.kind = 'tag'), '{}') as tags
                   from audience_members o
                   join audiences a on a.tenant_id = o.tenant_id and a.id = o.audience_id and a.deleted_at is null
                   where o.tenant_id = c.tenant_id and o.contact_id = c.id
               ) m
               order by c.id"#,
            slice.tenant,
            slice.after.first,
            slice.limit,
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
    const NAME: &'static str = "suppressions";
    const COLUMNS: &'static [&'static str] =
        &["suppression_id", "email", "reason", "scope", "source", "send_id", "note", "created_at", "expires_at"];

    fn cursor(&self) -> ExportCursor {
        by_id(self.suppression_id)
    }

    async fn slice(db: &mut PgConnection, slice: ExportSlice) -> sqlx::Result<Vec<Self>> {
        sqlx::query_as!(
            Self,
            "select id as suppression_id, address as email, reason, scope, source, send_id, note, created_at, expires_at
             from suppressions where tenant_id = $1 and id > $2 order by id limit $3",
            slice.tenant,
            slice.after.first,
            slice.limit,
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
    /// As the caller gave them, as long as the request is kept.
    tags: Option<Value>,
    metadata: Option<Value>,
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
    const NAME: &'static str = "sends";
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
        "tags",
        "metadata",
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

    async fn slice(db: &mut PgConnection, slice: ExportSlice) -> sqlx::Result<Vec<Self>> {
        sqlx::query_as!(
            Self,
            r#"select s.id as send_id, s.campaign_id, s.contact_id, c.address as "email?", s.state, s.reason, s.attempts, s.provider,
                      s.smtp_code, s.enhanced_code, r.options -> 'tags' as tags, r.options -> 'metadata' as metadata, s.decided_at, s.delivered_at, s.bounced_at, s.complained_at, s.opened_at,
                      s.clicked_at, s.replied_at, s.unsubscribed_at
               from (select * from sends where tenant_id = $1 and id > $2 order by id limit $3) s
               left join contacts c on c.tenant_id = s.tenant_id and c.id = s.contact_id and c.status <> 'erased'
               left join requests r on r.tenant_id = s.tenant_id and r.id = s.request_id
               order by s.id"#,
            slice.tenant,
            slice.after.first,
            slice.limit,
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
    const NAME: &'static str = "events";
    const COLUMNS: &'static [&'static str] = &["send_id", "event_id", "type", "occurred_at", "recorded_at", "detail"];

    fn cursor(&self) -> ExportCursor {
        ExportCursor { first: self.send_id, second: self.event_id }
    }

    async fn slice(db: &mut PgConnection, slice: ExportSlice) -> sqlx::Result<Vec<Self>> {
        sqlx::query_as!(
            Self,
            r#"select send_id, id as event_id, type as "type", occurred_at, recorded_at, detail
               from events where tenant_id = $1 and (send_id, id) > ($2, $3)
                 and ($5::timestamptz is null or recorded_at >= $5)
               order by send_id, id limit $4"#,
            slice.tenant,
            slice.after.first,
            slice.after.second,
            slice.limit,
            slice.since,
        )
        .fetch_all(db)
        .await
    }
}

/// An event that a product reported.
#[derive(Debug, Serialize)]
pub(super) struct ExportedProductEvent {
    event_id: Uuid,
    product: String,
    /// The product's own id.
    source_event_id: Option<String>,
    contact_id: Uuid,
    email: Option<String>,
    name: String,
    properties: Value,
    #[serde(serialize_with = "as_time")]
    occurred_at: DateTime<Utc>,
    #[serde(serialize_with = "as_time")]
    received_at: DateTime<Utc>,
}

impl ExportRow for ExportedProductEvent {
    const NAME: &'static str = "product_events";
    const COLUMNS: &'static [&'static str] = &[
        "event_id",
        "product",
        "source_event_id",
        "contact_id",
        "email",
        "name",
        "properties",
        "occurred_at",
        "received_at",
    ];

    fn cursor(&self) -> ExportCursor {
        by_id(self.event_id)
    }

    async fn slice(db: &mut PgConnection, slice: ExportSlice) -> sqlx::Result<Vec<Self>> {
        sqlx::query_as!(
            Self,
            r#"select e.id as event_id, e.product, e.event_id as source_event_id, e.contact_id, c.address as "email?", e.name, e.properties,
                      e.occurred_at, e.received_at
               from (select * from product_events where tenant_id = $1 and id > $2 order by id limit $3) e
               left join contacts c on c.tenant_id = e.tenant_id and c.id = e.contact_id and c.status <> 'erased'
               order by e.id"#,
            slice.tenant,
            slice.after.first,
            slice.limit,
        )
        .fetch_all(db)
        .await
    }
}
