//! `POST /v1/transactional/batch`: an array of transactional requests of one tenant over HTTP, with an answer for each.

use std::sync::Arc;

use schemars::JsonSchema;
use schemas::rejected::{Refusal, RefusedField};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    super::{ACCEPTED, SendTransactional},
    ARRAY_MAX, ArrayItems, accept_for_tenant, keys,
};
use crate::pipeline::{
    ApiReply, Doc, Faults, PreparationContext, RequestContext, RouteEndpoint,
    doc::ID,
    error::{ApiError, FieldFault},
    write_with_files,
};

pub(in crate::api::transactional) const BATCH_PATH: &str = "/v1/transactional/batch";

pub(in crate::api::transactional) fn batch_endpoint() -> (RouteEndpoint, Doc) {
    let doc = Doc::new(
        "sendTransactionalBatch",
        "Send up to 500 transactional mails",
        "Each message is what `POST /v1/transactional` takes, without the tenant, and may have an `idempotency_key` of its \
         own: a message is accepted once under its key, in whichever batch, for 24 hours. Messages are accepted or refused \
         one by one, and `results` answers each in its place; a refused one, also one with a bad file, costs no other. The \
         attachments of all messages have at most 15 MB together, decoded. More than 50 mails with one \
         template and sender, copies counted, travel behind mail of their kind, also those that are due later.",
    )
    .example(json!({"messages": [
        {"template_id": ID, "email": "ann@example.com", "data": {"total": "12.50"}, "idempotency_key": "order-1042"},
        {"template_id": ID, "email": "bob@example.com"},
    ]}))
    .answer::<MailBatchAccepted>(202, "Each message is accepted or refused")
    .refuses(409, &["idempotency_in_progress"])
    .refuses(413, &["attachments_too_large"]);
    let endpoint =
        write_with_files("email:send_one:create", |context, body| Box::pin(prepare(context, body)), send_batch);
    (endpoint, doc)
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SendMailBatch {
    #[schemars(with = "Vec<BatchedMail>", length(min = 1, max = ARRAY_MAX))]
    messages: Option<Vec<Value>>,
}

/// One message of a batch.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only described: each message is read on its own")]
struct BatchedMail {
    #[schemars(flatten)]
    request: SendTransactional,
    /// What this message is accepted once by.
    #[schemars(length(min = 1, max = 255), pattern("^[!-~]+$"))]
    idempotency_key: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct MailBatchAccepted {
    /// How many are accepted, now or before.
    accepted: usize,
    refused: usize,
    /// In the order of the messages.
    results: Vec<MailBatchResult>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct MailBatchResult {
    #[schemars(extend("enum" = ["scheduled", "refused"]))]
    status: &'static str,
    send_id: Option<Uuid>,
    /// Why it is refused: the code that `POST /v1/transactional` answers.
    error: Option<String>,
    detail: Option<String>,
    fields: Vec<FieldFault>,
}

impl MailBatchResult {
    fn of(outcome: Result<Uuid, Refusal>) -> Self {
        match outcome {
            Ok(send) => {
                Self { status: "scheduled", send_id: Some(send), error: None, detail: None, fields: Vec::new() }
            }
            Err(Refusal { code, detail, fields, .. }) => {
                let fault = |field: RefusedField| FieldFault::new(field.path, field.code, field.detail);
                let fields = fields.into_iter().map(fault).collect();
                Self { status: "refused", send_id: None, error: Some(code), detail, fields }
            }
        }
    }
}

/// Reads and validates the messages, and looks into their files.
async fn prepare(context: PreparationContext, body: SendMailBatch) -> Result<ArrayItems, ApiError> {
    let mut faults = Faults::default();
    let messages = faults.required("messages", body.messages).unwrap_or_default();
    let is_within = faults.is_empty() && (1..=ARRAY_MAX).contains(&messages.len());
    faults.require(is_within, "messages", "out_of_range", "must be 1 to 500 messages");
    faults.finish()?;
    let tenant = context.tenant;
    let mut items = tokio::task::spawn_blocking(move || ArrayItems::of_tenant(messages, tenant)).await?;
    items.inspect_files(&context.ingress, &context.caller.product).await?;
    items.keep_inspections();
    Ok(items)
}

async fn send_batch(ctx: &mut RequestContext, prepared: Result<ArrayItems, ApiError>) -> Result<ApiReply, ApiError> {
    let mut items = prepared?;
    let (tenant, caller) = (ctx.tenant, Arc::clone(&ctx.caller));
    keys::claim_keys(ctx.db(), caller.lineage, &mut items).await?;
    items.check_requests();
    for announcement in accept_for_tenant(ctx.db(), &caller, tenant, &mut items, true).await? {
        ctx.announce(announcement);
    }
    keys::store_answers(ctx.db(), caller.lineage, &items).await?;
    ctx.commits_no_facts();
    let results: Vec<MailBatchResult> = items.outcomes().into_iter().map(MailBatchResult::of).collect();
    let refused = results.iter().filter(|result| result.error.is_some()).count();
    ApiReply::new(ACCEPTED, &MailBatchAccepted { accepted: results.len() - refused, refused, results })
}
