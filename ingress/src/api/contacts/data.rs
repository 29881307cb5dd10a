//! `/v1/contacts/{id}/data`: everything that is held about a person, for an access request. POST answers it page by page, GET as one
//! stream; both write into the audit log.

use std::sync::Arc;

use http::StatusCode;
use schemars::JsonSchema;
use schemas::parse_id;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    record::{self, ContactView},
    store::survivor_of_path,
};
use crate::{
    api::exports::{self, StreamSlice, format::write_line},
    pipeline::{
        ApiReply, NoParameters, RequestContext,
        error::ApiError,
        page::{OptionalTime, Time},
    },
};

/// In the audit log: what is held about a person was read.
const DATA_READ: &str = "contact.data_read";
/// Records of one page, and of a slice of the stream.
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
    #[schemars(extend("enum" = ["confirmation", "enrollment", "message", "outcome", "product_event", "request", "send"]))]
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
    /// Since then it stops no mail.
    expires_at: OptionalTime,
}

/// A topic that the person left on the preferences page.
#[derive(Debug, Serialize, JsonSchema)]
struct LeftTopic {
    list_id: Uuid,
    name: String,
    left_at: Time,
}

/// What is held about a person beside the records: the first line of the stream.
#[derive(Debug, Serialize, JsonSchema)]
struct ContactDataHead {
    contact: ContactView,
    /// Addresses of contacts that were merged into this one.
    merged_addresses: Vec<String>,
    /// What is still held of those contacts, as it is stored.
    #[schemars(with = "Vec<Map<String, Value>>")]
    merged_contacts: Vec<Value>,
    suppressions: Vec<DataSuppression>,
    left_topics: Vec<LeftTopic>,
}

/// What is held about a person.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ContactData {
    #[serde(flatten)]
    head: ContactDataHead,
    /// One page, in the order of kind and id.
    records: Vec<DataRecord>,
    /// Give it as `cursor` for the next page; null at the end.
    next_cursor: Option<String>,
}

/// Answers a page of what is held, and writes that into the audit log.
pub(super) async fn read_data(ctx: &mut RequestContext, body: ReadContactData) -> Result<ApiReply, ApiError> {
    let id = survivor_of_path(ctx).await?;
    let (kind, after) = read_cursor(body.cursor.as_deref())?;
    let (head, first) = read_head(ctx, id).await?;
    let slice = DataSlice { kind: kind.to_owned(), after, ..first };
    let records = slice.records(ctx.db()).await?;
    let next_cursor = slice.following(&records).map(|next| format!("{}.{}", next.kind, next.after));
    ctx.audit(DATA_READ, &id.to_string(), json!({"records": records.len()})).await?;
    ApiReply::ok(&ContactData { head, records, next_cursor })
}

/// Answers all that is held, an object on each line, and writes that into the audit log.
pub(super) async fn export_data(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let id = survivor_of_path(ctx).await?;
    let (head, slice) = read_head(ctx, id).await?;
    let mut first = Vec::new();
    write_line(&head, &mut first)?;
    let (records, next) = slice.read(ctx.db()).await?;
    first.extend_from_slice(&records);
    let (actor, detail) = (ctx.caller.actor(), json!({"all": true}));
    exports::note_begun(&ctx.ingress, ctx.tenant, &actor, DATA_READ, &id.to_string(), detail).await?;
    let rest = exports::stream_slices(Arc::clone(&ctx.ingress), ctx.tenant, next);
    Ok(ApiReply::stream(StatusCode::OK, exports::NDJSON, first, rest))
}

/// The records of a person after a kind and id.
struct DataSlice {
    tenant: Uuid,
    /// The contact and those that were merged into it.
    contacts: Vec<Uuid>,
    addresses: Vec<String>,
    kind: String,
    after: Uuid,
}

impl DataSlice {
    async fn records(&self, db: &mut PgConnection) -> sqlx::Result<Vec<DataRecord>> {
        sqlx::query_file_as!(
            DataRecord,
            "queries/contact_data.sql",
            self.tenant,
            &self.contacts,
            &self.addresses,
            self.kind.as_str(),
            self.after,
            PAGE_MAX,
        )
        .fetch_all(db)
        .await
    }

    /// The slice after these records; `None` after the last one.
    fn following(self, records: &[DataRecord]) -> Option<Self> {
        let is_full = i64::try_from(records.len()).is_ok_and(|found| found == PAGE_MAX);
        let last = records.last().filter(|_| is_full)?;
        Some(Self { kind: last.kind.clone(), after: last.id, ..self })
    }
}

impl StreamSlice for DataSlice {
    async fn read(self, db: &mut PgConnection) -> Result<(Vec<u8>, Option<Self>), ApiError> {
        let records = self.records(db).await?;
        let mut written = Vec::new();
        for record in &records {
            write_line(record, &mut written)?;
        }
        Ok((written, self.following(&records)))
    }
}

/// What is held beside the records, and the first slice of these. It locks nothing: the stream is a read.
async fn read_head(ctx: &mut RequestContext, id: Uuid) -> Result<(ContactDataHead, DataSlice), ApiError> {
    let tenant = ctx.tenant;
    let contact = record::one(ctx.db(), tenant, id).await?;
    let merged = sqlx::query!(
        r#"select id, address, to_jsonb(c) - 'tenant_id' as "stored!" from contacts c
           where tenant_id = $1 and merged_into = $2 and status <> 'erased' order by id"#,
        tenant,
        id
    );
    let (mut contacts, mut merged_addresses, mut merged_contacts) = (vec![id], Vec::new(), Vec::new());
    for row in merged.fetch_all(ctx.db()).await? {
        contacts.push(row.id);
        merged_addresses.push(row.address);
        merged_contacts.push(row.stored);
    }
    let addresses: Vec<String> = merged_addresses.iter().cloned().chain([contact.email.clone()]).collect();
    let suppressions = sqlx::query_as!(
        DataSuppression,
        "select address as email, reason, scope, source, note, created_at, expires_at from suppressions
         where tenant_id = $1 and address = any ($2) order by address, reason",
        tenant,
        &addresses,
    )
    .fetch_all(ctx.db())
    .await?;
    let left_topics = sqlx::query_as!(
        LeftTopic,
        "select a.id as list_id, a.name, d.left_at from topic_opt_outs d
         join audiences a on a.tenant_id = d.tenant_id and a.id = d.audience_id
         where d.tenant_id = $1 and d.contact_id = any ($2) order by d.left_at, a.id",
        tenant,
        &contacts,
    )
    .fetch_all(ctx.db())
    .await?;
    let head = ContactDataHead { contact, merged_addresses, merged_contacts, suppressions, left_topics };
    Ok((head, DataSlice { tenant, contacts, addresses, kind: String::new(), after: Uuid::nil() }))
}

/// The kind and id after which the page begins.
fn read_cursor(cursor: Option<&str>) -> Result<(&str, Uuid), ApiError> {
    let Some(cursor) = cursor else { return Ok(("", Uuid::nil())) };
    let read = cursor.split_once('.').and_then(|(kind, id)| Some((kind, parse_id(id).ok()?)));
    read.ok_or_else(|| ApiError::invalid("cursor", "invalid", "is not a next_cursor of this list"))
}

#[cfg(test)]
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
