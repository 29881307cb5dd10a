//! `POST /v1/contacts/{id}/data`: everything that is held about a person, for an access request. A POST, because it is written into the
//! audit log.

use schemars::JsonSchema;
use schemas::parse_id;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    record::{self, ContactView},
    store::{self, survivor_of_path},
};
use crate::pipeline::{ApiReply, RequestContext, error::ApiError, page::Time};

/// Records of one page.
const PAGE_MAX: i64 = 200;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ReadContactData {
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Something that is held about a person.
#[derive(Debug, Serialize, JsonSchema)]
struct DataRecord {
    #[schemars(extend("enum" = ["confirmation", "enrollment", "outcome", "product_event", "request", "send"]))]
    kind: String,
    id: Uuid,
    /// As it is stored; a mail with its events.
    #[schemars(with = "Map<String, Value>")]
    data: Value,
}

/// A suppression of one of the person's addresses.
#[derive(Debug, Serialize, JsonSchema)]
struct DataSuppression {
    email: String,
    reason: String,
    scope: String,
    source: String,
    note: Option<String>,
    created_at: Time,
}

/// A topic that the person left on the preferences page.
#[derive(Debug, Serialize, JsonSchema)]
struct LeftTopic {
    list_id: Uuid,
    name: String,
    left_at: Time,
}

/// What is held about a person.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ContactData {
    contact: ContactView,
    /// Addresses of contacts that were merged into this one.
    merged_addresses: Vec<String>,
    suppressions: Vec<DataSuppression>,
    left_topics: Vec<LeftTopic>,
    /// One page, in the order of kind and id.
    records: Vec<DataRecord>,
    /// Give it as `cursor` for the next page; null at the end.
    next_cursor: Option<String>,
}

/// Answers a page of what is held, and writes that into the audit log.
pub(super) async fn read_data(ctx: &mut RequestContext, body: ReadContactData) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, survivor_of_path(ctx).await?);
    let (kind, after) = read_cursor(body.cursor.as_deref())?;
    let contact = record::one(ctx.db(), tenant, id).await?;
    let merged = store::merged(ctx.db(), tenant, id).await?;
    let (mut ids, merged_addresses): (Vec<Uuid>, Vec<String>) = merged.into_iter().unzip();
    ids.push(id);
    let addresses: Vec<String> = merged_addresses.iter().cloned().chain([contact.email.clone()]).collect();
    let suppressions = suppressions(ctx.db(), tenant, &addresses).await?;
    let left_topics = left_topics(ctx.db(), tenant, &ids).await?;
    let records =
        sqlx::query_file_as!(DataRecord, "queries/contact_data.sql", tenant, &ids, &addresses, kind, after, PAGE_MAX)
            .fetch_all(ctx.db())
            .await?;
    let is_full = i64::try_from(records.len()).is_ok_and(|found| found == PAGE_MAX);
    let next_cursor = records.last().filter(|_| is_full).map(|last| format!("{}.{}", last.kind, last.id));
    ctx.audit("contact.data_read", &id.to_string(), json!({"records": records.len()})).await?;
    ApiReply::ok(&ContactData { contact, merged_addresses, suppressions, left_topics, records, next_cursor })
}

/// The kind and id after which the page begins.
fn read_cursor(cursor: Option<&str>) -> Result<(&str, Uuid), ApiError> {
    let Some(cursor) = cursor else { return Ok(("", Uuid::nil())) };
    let read = cursor.split_once('.').and_then(|(kind, id)| Some((kind, parse_id(id).ok()?)));
    read.ok_or_else(|| ApiError::invalid("cursor", "invalid", "is not a next_cursor of this list"))
}

async fn suppressions(db: &mut PgConnection, tenant: Uuid, addresses: &[String]) -> sqlx::Result<Vec<DataSuppression>> {
    sqlx::query_as!(
        DataSuppression,
        "select address as email, reason, scope, source, note, created_at from suppressions
         where tenant_id = $1 and address = any ($2) order by address, reason",
        tenant,
        addresses,
    )
    .fetch_all(db)
    .await
}

async fn left_topics(db: &mut PgConnection, tenant: Uuid, contacts: &[Uuid]) -> sqlx::Result<Vec<LeftTopic>> {
    sqlx::query_as!(
        LeftTopic,
        "select a.id as list_id, a.name, d.left_at from topic_opt_outs d
         join audiences a on a.tenant_id = d.tenant_id and a.id = d.audience_id
         where d.tenant_id = $1 and d.contact_id = any ($2) order by d.left_at, a.id",
        tenant,
        contacts,
    )
    .fetch_all(db)
    .await
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_one_that_was_answered() {
        let id = schemas::new_id();
        assert_eq!(read_cursor(None).unwrap(), ("", Uuid::nil()));
        assert_eq!(read_cursor(Some(&format!("send.{id}"))).unwrap(), ("send", id));
        for cursor in ["", "send", "send.", "send.x"] {
            assert_eq!(read_cursor(Some(cursor)).unwrap_err().fields[0].path, "cursor");
        }
    }
}
