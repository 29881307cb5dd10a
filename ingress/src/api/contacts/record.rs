//! A contact as callers see it.

use ledger::suppressions::SuppressionReason;
use schemars::JsonSchema;
use schemas::{MarketingStatus, action::SuppressionScope};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use super::{confirmation::ContactConfirmation, input::SignUpEvidence, store::ContactStatus};
use crate::{
    api::audiences::held::AudienceKind,
    pipeline::{
        error::ApiError,
        page::{OptionalTime, Time},
        resource,
        types::Email,
    },
};

/// A contact as callers see it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Contact")]
pub(super) struct ContactView {
    pub contact_id: Uuid,
    #[schemars(with = "Email")]
    pub email: String,
    /// The contact's id in the product.
    external_id: Option<String>,
    first_name: Option<String>,
    last_name: Option<String>,
    title: Option<String>,
    phone: Option<String>,
    company: Option<String>,
    #[schemars(range(min = 1, max = i64::MAX))]
    dot_number: Option<i64>,
    /// The tenant's own fields, by key.
    #[schemars(with = "Map<String, Value>")]
    fields: Value,
    tags: Vec<ContactTag>,
    lists: Vec<ContactList>,
    timezone: Option<String>,
    locale: Option<String>,
    lifecycle_stage: Option<String>,
    #[schemars(with = "ContactStatus")]
    status: String,
    #[schemars(with = "MarketingStatus")]
    marketing_status: String,
    /// The gravest suppression in force.
    suppression: Option<ContactSuppression>,
    source: Option<String>,
    consent: ContactConsent,
    /// Of a contact that was asked by mail to confirm the consent.
    pub(super) confirmation: Option<ContactConfirmation>,
    /// The ids of contacts that became part of this one. They lead here; sends and enrollments from before keep them.
    merged: Vec<Uuid>,
    pub created_at: Time,
    updated_at: Time,
}

resource!(ContactView, "contact", "contacts", contact_id);

#[derive(Debug, Serialize, JsonSchema)]
struct ContactTag {
    tag_id: Uuid,
    name: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ContactList {
    list_id: Uuid,
    name: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ContactConsent {
    basis: Option<String>,
    at: OptionalTime,
    source: Option<String>,
    description: Option<String>,
    /// The sign-up as it happened.
    evidence: Option<SignUpEvidence>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct ContactSuppression {
    #[schemars(with = "SuppressionReason")]
    reason: String,
    #[schemars(with = "SuppressionScope")]
    scope: String,
    since: Time,
}

#[derive(Debug, Deserialize)]
struct ContactMembership {
    id: Uuid,
    kind: AudienceKind,
    name: String,
}

/// The contacts with these ids, newest first.
pub(super) async fn records(db: &mut PgConnection, tenant: Uuid, ids: &[Uuid]) -> sqlx::Result<Vec<ContactView>> {
    let rows = sqlx::query_file!("queries/contacts.sql", tenant, ids).fetch_all(db).await?;
    let contacts = rows.into_iter().map(|row| {
        let (mut tags, mut lists) = (Vec::new(), Vec::new());
        for Json(ContactMembership { id, kind, name }) in row.memberships {
            match kind {
                AudienceKind::Tag => tags.push(ContactTag { tag_id: id, name }),
                AudienceKind::List => lists.push(ContactList { list_id: id, name }),
            }
        }
        ContactView {
            contact_id: row.id,
            email: row.address,
            external_id: row.external_id,
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
            merged: row.merged,
            confirmation: row.confirmation.map(|Json(confirmation)| confirmation),
            consent: ContactConsent {
                basis: row.consent_basis,
                at: row.consent_at.into(),
                source: row.consent_source,
                description: row.consent_description,
                evidence: row.consent_evidence.map(|Json(evidence)| evidence),
            },
            created_at: row.created_at.into(),
            updated_at: row.updated_at.into(),
        }
    });
    Ok(contacts.collect())
}

impl ContactView {
    /// True if another contact stands for it.
    pub(super) fn is_merged(&self) -> bool {
        self.status == "merged"
    }
}

pub(super) async fn one(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<ContactView, ApiError> {
    records(db, tenant, &[id]).await?.into_iter().next().ok_or_else(|| ApiError::not_found("contact"))
}
