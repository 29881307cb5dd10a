//! `POST /v1/contacts/batch`: up to a thousand contacts in one call, with a result for each.

use std::{borrow::Cow, collections::BTreeMap};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    input::{CreateContact, OnExisting, WantedContact},
    upsert::{self, Upserted},
};
use crate::{
    api::fields::definitions::{self, FieldType},
    pipeline::{
        ApiReply, RequestContext,
        error::{ApiError, FieldFault},
        json,
    },
};

/// The most contacts of one call.
pub(super) const BATCH_MAX: usize = 1_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UpsertContacts {
    /// Each is checked on its own.
    #[schemars(with = "Vec<BatchItem>", length(min = 1, max = BATCH_MAX))]
    contacts: Vec<Value>,
}

/// A contact of a batch: the body of a creation, without the tenant. Anything else is taken, too, and refused in the answer.
enum BatchContact {}

impl JsonSchema for BatchContact {
    fn schema_name() -> Cow<'static, str> {
        "BatchContact".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        CreateContact::json_schema(generator)
    }
}

/// What stands in a batch.
#[derive(JsonSchema)]
#[schemars(inline, untagged)]
#[expect(dead_code, reason = "only described")]
enum BatchItem {
    Contact(BatchContact),
    /// Refused in the answer.
    Other(Value),
}

/// What became of one contact of a batch.
#[derive(Debug, Serialize, JsonSchema)]
struct BatchResult {
    /// Its place in the request, from 0.
    index: usize,
    #[schemars(extend("enum" = ["created", "updated", "unchanged", "refused"]))]
    result: &'static str,
    contact_id: Option<Uuid>,
    /// Why it was refused.
    error: Option<String>,
    /// The faults of a refused one; of more than ten the first ten.
    fields: Vec<FieldFault>,
}

/// How many contacts had which result.
#[derive(Debug, Default, Serialize, JsonSchema)]
struct BatchCounts {
    created: usize,
    updated: usize,
    unchanged: usize,
    refused: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ContactsUpserted {
    counts: BatchCounts,
    /// In the order of the request.
    results: Vec<BatchResult>,
}

/// Creates or updates the contacts; a bad one costs only itself.
pub(super) async fn upsert_contacts(ctx: &mut RequestContext, body: UpsertContacts) -> Result<ApiReply, ApiError> {
    if body.contacts.is_empty() || body.contacts.len() > BATCH_MAX {
        return Err(ApiError::invalid("contacts", "out_of_range", format!("must hold 1 to {BATCH_MAX} contacts")));
    }
    let tenant = ctx.tenant;
    let defined = definitions::read_for_write(ctx.db(), tenant).await?;
    let read = |contact| read(contact, &defined).map_err(ApiError::of_item);
    let wanted = body.contacts.into_iter().map(read).collect();
    let results = upsert::upsert(ctx, wanted, OnExisting::Update).await?;
    let mut counts = BatchCounts::default();
    let results = results.into_iter().enumerate().map(|(index, result)| counts.take(index, result)).collect();
    ctx.audit("contact.batch_upserted", "api", json!(counts)).await?;
    ApiReply::ok(&ContactsUpserted { counts, results })
}

fn read(contact: Value, defined: &BTreeMap<String, FieldType>) -> Result<WantedContact, ApiError> {
    match contact {
        Value::Object(contact) => json::decode::<CreateContact>(contact)?.validate(defined),
        _ => Err(ApiError::invalid("", "wrong_type", "must be an object")),
    }
}

impl BatchCounts {
    fn take(&mut self, index: usize, result: Result<Upserted, ApiError>) -> BatchResult {
        let (count, result, contact_id) = match result {
            Ok(Upserted::Created(id)) => (&mut self.created, "created", id),
            Ok(Upserted::Updated(id)) => (&mut self.updated, "updated", id),
            Ok(Upserted::Unchanged(id)) => (&mut self.unchanged, "unchanged", id),
            Err(error) => {
                self.refused += 1;
                let (error, fields) = (Some(error.code.into_owned()), error.fields);
                return BatchResult { index, result: "refused", contact_id: None, error, fields };
            }
        };
        *count += 1;
        BatchResult { index, result, contact_id: Some(contact_id), error: None, fields: Vec::new() }
    }
}
