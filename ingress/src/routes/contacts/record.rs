//! A contact as callers see it.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use crate::{
    act::page::{as_optional_time, as_time},
    error::ApiError,
    routes::audiences::AudienceKind,
};

/// A contact as callers see it.
#[derive(Debug, Serialize)]
pub(super) struct Contact {
    pub contact_id: Uuid,
    email: String,
    first_name: Option<String>,
    last_name: Option<String>,
    title: Option<String>,
    phone: Option<String>,
    company: Option<String>,
    dot_number: Option<i64>,
    fields: Value,
    tags: Vec<Tag>,
    lists: Vec<List>,
    timezone: Option<String>,
    locale: Option<String>,
    lifecycle_stage: Option<String>,
    status: String,
    marketing_status: String,
    suppression: Option<Suppression>,
    source: Option<String>,
    consent: Consent,
    #[serde(serialize_with = "as_time")]
    pub created_at: DateTime<Utc>,
    #[serde(serialize_with = "as_time")]
    updated_at: DateTime<Utc>,
}

#[derive(Debug, Serialize)]
struct Tag {
    tag_id: Uuid,
    name: String,
}

#[derive(Debug, Serialize)]
struct List {
    list_id: Uuid,
    name: String,
}

#[derive(Debug, Serialize)]
struct Consent {
    basis: Option<String>,
    #[serde(serialize_with = "as_optional_time")]
    at: Option<DateTime<Utc>>,
    source: Option<String>,
    description: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Suppression {
    reason: String,
    scope: String,
    #[serde(serialize_with = "as_time")]
    since: DateTime<Utc>,
}

#[derive(Debug, Deserialize)]
struct Membership {
    id: Uuid,
    kind: AudienceKind,
    name: String,
}

/// The contacts with these ids, newest first.
pub(super) async fn records(db: &mut PgConnection, tenant: Uuid, ids: &[Uuid]) -> sqlx::Result<Vec<Contact>> {
    let rows = sqlx::query_file!("queries/contacts.sql", tenant, ids).fetch_all(db).await?;
    let contacts = rows.into_iter().map(|row| {
        let (mut tags, mut lists) = (Vec::new(), Vec::new());
        for Json(Membership { id, kind, name }) in row.memberships {
            match kind {
                AudienceKind::Tag => tags.push(Tag { tag_id: id, name }),
                AudienceKind::List => lists.push(List { list_id: id, name }),
            }
        }
        Contact {
            contact_id: row.id,
            email: row.address,
            first_name: row.first_name,
            last_name: row.last_name,
            title: row.title,
            phone: row.phone,
            company: row.company,
            dot_number: row.dot_number,
            fields: row.fields,
            tags,
            lists,
            timezone: row.timezone,
            locale: row.locale,
            lifecycle_stage: row.lifecycle_stage,
            status: row.status,
            marketing_status: row.marketing_status,
            suppression: row.suppression.map(|Json(suppression)| suppression),
            source: row.source,
            consent: Consent {
                basis: row.consent_basis,
                at: row.consent_at,
                source: row.consent_source,
                description: row.consent_description,
            },
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    });
    Ok(contacts.collect())
}

/// One contact.
pub(super) async fn one(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<Contact, ApiError> {
    records(db, tenant, &[id]).await?.into_iter().next().ok_or_else(|| ApiError::not_found("contact"))
}
