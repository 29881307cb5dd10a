//! `GET /v1/sends/{id}`: the outcome of one message to one recipient, and its reason.

pub(crate) mod store;

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use schemas::{
    Classification, Lane, MessageKind, SendId, SendState, SkipReason,
    messages::{ERASED_COPY, MailOptions, RecipientRole},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use self::store::EventRow;
use crate::pipeline::{
    ApiReply, Doc, NoFields, NoParameters, RequestContext, Routes,
    error::ApiError,
    page::{OptionalTime, Time},
    read, resource, status_answer, time, write_by_key,
};

/// Event types that an attempt may end in: the server's answer, or its silence. The event then has the number of the attempt. That of mail
/// which ended before delivery, such as mail that could not be rendered, has none.
const ATTEMPTS: [&str; 5] = ["sent", "deferred", "failed", "unknown", "expired"];

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .get(
            "/v1/sends/{id}",
            read("sends:read", one),
            Doc::new(
                "getSend",
                "Read a send and its outcome",
                "State, attempts with the server's answers, facts, timeline.",
            )
            .single::<SendRecord>("The send"),
        )
        .delete(
            "/v1/sends/{id}",
            write_by_key("sends:cancel", cancel),
            Doc::new(
                "cancelSend",
                "Cancel a scheduled mail",
                "With its copies; a one-off message as a whole, for all of its recipients. Once this is answered 200 nothing leaves. Only \
                 until the mail is due: from then on it is a 409.",
            )
            .answer::<SendCancelled>(200, "Cancelled")
            .refuses(404, &["send_not_found"])
            .refuses(409, &["send_not_scheduled"]),
        )
        .get(
            "/v1/sends/{id}/source",
            read("sends:read", source),
            Doc::new(
                "getSendSource",
                "Read the mail that the sandbox captured",
                "The message as it would have left, headers first, in the sandbox environment only. Kept for seven \
                 days, the newest 500 of a tenant; of a longer message the first 256 KB.",
            )
            .answer::<CapturedSource>(200, "The message")
            .refuses(404, &["send_not_found", "source_not_found"]),
        )
}

status_answer!(SendCancelled, send_id, "cancelled");

async fn cancel(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("send")?);
    if !store::cancel_scheduled(ctx.db(), tenant, id).await? {
        let send = find_send(ctx.db(), tenant, id).await?;
        return Err(ApiError::conflict("send_not_scheduled").detail(format!("the send is {}", send.row.state)));
    }
    ctx.audit("send.cancel", &id.to_string(), json!({})).await?;
    ctx.commits_no_facts();
    SendCancelled::reply(id)
}

async fn one(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("send")?);
    ApiReply::single(find_send(ctx.db(), tenant, id).await?)
}

/// A mail that the sandbox kept.
#[derive(Debug, Serialize, JsonSchema)]
struct CapturedSource {
    send_id: Uuid,
    /// RFC 5322, without our DKIM signature.
    source: String,
    truncated: bool,
    captured_at: Time,
}

/// What the capture provider took instead of sending it.
async fn source(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("send")?);
    let captured = sqlx::query!(
        "select source, is_cut, captured_at from captured_mails where tenant_id = $1 and send_id = $2",
        tenant,
        id
    )
    .fetch_optional(ctx.db())
    .await?;
    let Some(captured) = captured else {
        let object = if store::get(ctx.db(), tenant, id).await?.is_some() { "source" } else { "send" };
        return Err(ApiError::not_found(object));
    };
    ApiReply::ok(&CapturedSource {
        send_id: id,
        // What we render is ASCII; a one-off message may hold what it likes.
        source: String::from_utf8_lossy(&captured.source).into_owned(),
        truncated: captured.is_cut,
        captured_at: captured.captured_at.into(),
    })
}

/// A send, or the request that it will come from.
///
/// # Errors
/// 404 `send_not_found`.
pub(crate) async fn find_send(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<SendRecord, ApiError> {
    if let Some(send) = find_written(&mut *db, tenant, id).await? {
        return Ok(send);
    }
    // Accepted and not resolved yet: the caller has its id, so it is there.
    let Some(mut pending) = store::pending(&mut *db, tenant, id).await? else {
        // Resolved since the first look; or long ago, and its month is gone from the ledger.
        return find_written(db, tenant, id).await?.ok_or_else(|| ApiError::not_found("send"));
    };
    let options = pending.options.as_ref().map(|Json(options)| options.clone()).unwrap_or_default();
    let recipients = match (options.copies.is_empty(), pending.message_id) {
        (true, _) => Vec::new(),
        (false, Some(message)) => store::recipients(db, tenant, message).await?,
        (false, None) => {
            let copies = options.copies.iter().map(|copy| Some(copy.address.as_str().to_owned()));
            let all = std::iter::once(pending.email.clone()).chain(copies);
            let sends = (0..).map(|ordinal| SendId::of(SendId(id).batch(), ordinal).0).zip(all);
            sends.filter(|(_, email)| email.as_deref() != Some(ERASED_COPY)).collect()
        }
    };
    if let Some((_, email)) = recipients.iter().find(|(send, _)| *send == id) {
        pending.email.clone_from(email);
    }
    let state = pending.state;
    let copies = recipients.into_iter().map(|(send_id, email)| SendCopy {
        send_id,
        email,
        role: role_of(send_id, &options),
        state,
        skip_reason: None,
    });
    Ok(SendRecord { copies: copies.collect(), ..SendRecord::of(pending, Vec::new()) })
}

/// A send that is in the ledger.
async fn find_written(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<Option<SendRecord>, ApiError> {
    let Some(row) = store::get(&mut *db, tenant, id).await? else { return Ok(None) };
    let events = store::events(&mut *db, tenant, id).await?;
    let copies = match &row.options {
        Some(Json(options)) if !options.copies.is_empty() => store::copies(db, tenant, id, options).await?,
        _ => Vec::new(),
    };
    Ok(Some(SendRecord { copies, ..SendRecord::of(row, events) }))
}

/// Whether a send is the mail itself or a copy.
fn role_of(send: Uuid, options: &MailOptions) -> RecipientRole {
    options.copy(SendId(send).ordinal()).map_or(RecipientRole::To, |copy| copy.role)
}

/// A send in a list.
// With its batch, or the request that it will come from. What is not serialised belongs to [`SendRecord`].
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SendSummary")]
pub(crate) struct SendRow {
    pub(crate) send_id: Uuid,
    pub(crate) message_kind: MessageKind,
    campaign_id: Option<Uuid>,
    /// The one-off message it belongs to.
    message_id: Option<Uuid>,
    /// The sequence whose step it is.
    sequence_id: Option<Uuid>,
    enrollment_id: Option<Uuid>,
    step_id: Option<Uuid>,
    /// Of an A/B test; null while it waits for the winner.
    #[schemars(extend("enum" = ledger::audience::VARIANT_NAMES))]
    pub(crate) variant: Option<String>,
    template_id: Option<Uuid>,
    /// Null where the campaign has its own content.
    #[schemars(range(min = 1))]
    template_version: Option<i32>,
    /// Null until the request is resolved.
    contact_id: Option<Uuid>,
    email: Option<String>,
    pub(crate) state: SendState,
    #[schemars(with = "Option<SkipReason>")]
    skip_reason: Option<String>,
    pub(crate) failure_reason: Option<String>,
    #[schemars(range(min = 0))]
    attempt_count: i16,
    #[schemars(range(min = 0))]
    smtp_code: Option<i16>,
    enhanced_code: Option<String>,
    /// The server's response text.
    response: Option<String>,
    /// The kind of provider that the last attempt went to, whether it took the mail or not.
    provider: Option<String>,
    /// The provider's id; with SMTP the Message-ID.
    provider_message_id: Option<String>,
    pub(crate) next_attempt_at: OptionalTime,
    decided_at: OptionalTime,
    #[schemars(with = "SendFacts")]
    facts: Json<SendFacts>,
    pub(crate) created_at: Time,
    #[serde(skip)]
    classification: Classification,
    #[serde(skip)]
    lane: Lane,
    #[serde(skip)]
    content_id: Option<Uuid>,
    #[serde(skip)]
    sender_id: Option<Uuid>,
    #[serde(skip)]
    options: Option<Json<MailOptions>>,
}

resource!(SendRow, "send", "sends", send_id);

/// When each fact about a send happened first.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct SendFacts {
    delivered_at: OptionalTime,
    bounced_at: OptionalTime,
    complained_at: OptionalTime,
    opened_at: OptionalTime,
    human_opened_at: OptionalTime,
    clicked_at: OptionalTime,
    human_clicked_at: OptionalTime,
    unsubscribed_at: OptionalTime,
    replied_at: OptionalTime,
}

/// A send with all there is to know of it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Send")]
pub(crate) struct SendRecord {
    #[serde(flatten)]
    pub(crate) row: SendRow,
    pub(crate) email_type: Classification,
    lane: Lane,
    content_id: Option<Uuid>,
    pub(crate) sender_id: Option<Uuid>,
    /// As the caller gave them.
    tags: Vec<String>,
    /// As the caller gave it.
    metadata: BTreeMap<String, String>,
    /// When it is due, of a scheduled mail.
    pub(crate) scheduled_at: OptionalTime,
    /// Whether it is the mail itself or a copy.
    role: RecipientRole,
    /// Of a mail with copies: all of its sends, that of the mail first.
    copies: Vec<SendCopy>,
    /// Each with its `outcome` and `at`, and the server's answer where there is one.
    attempts: Vec<Map<String, Value>>,
    /// Everything that happened, in order.
    timeline: Vec<TimelineEntry>,
}

resource!(SendRecord, "send", "sends", record => (*record.row.created_at, record.row.send_id));

/// One of the sends of a mail with copies.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SendCopy {
    pub(crate) send_id: Uuid,
    pub(crate) email: Option<String>,
    pub(crate) role: RecipientRole,
    pub(crate) state: SendState,
    #[schemars(with = "Option<SkipReason>")]
    pub(crate) skip_reason: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct TimelineEntry {
    #[serde(rename = "type")]
    kind: String,
    at: Time,
    #[schemars(with = "Map<String, Value>")]
    detail: Value,
}

impl TimelineEntry {
    fn new(kind: &str, at: DateTime<Utc>, detail: Value) -> Self {
        Self { kind: kind.to_owned(), at: at.into(), detail }
    }
}

impl SendRecord {
    /// A send, with what happened to it.
    pub(crate) fn of(mut row: SendRow, events: Vec<EventRow>) -> Self {
        let Json(options) = row.options.take().unwrap_or_default();
        let role = role_of(row.send_id, &options);
        let MailOptions { tags, metadata, scheduled_at, .. } = options;
        Self {
            email_type: row.classification,
            lane: row.lane,
            content_id: row.content_id,
            sender_id: row.sender_id,
            tags,
            metadata,
            scheduled_at: scheduled_at.into(),
            role,
            copies: Vec::new(),
            attempts: events.iter().filter_map(attempt).collect(),
            timeline: timeline(&row, events),
            row,
        }
    }
}

/// The attempt that an event ended, if it did: its detail (SMTP code, enhanced code, response, number) with its outcome and time.
fn attempt(event: &EventRow) -> Option<Map<String, Value>> {
    let detail = event.detail.as_object().filter(|detail| detail.contains_key("attempt"))?;
    // What expired while it waited has the number of an attempt that was not made.
    let is_answered = ["smtp_code", "response"].iter().any(|name| detail.contains_key(*name));
    let is_one = ATTEMPTS.contains(&event.kind.as_str()) && (event.kind != "expired" || is_answered);
    let mut attempt = is_one.then(|| detail.clone())?;
    attempt.insert("outcome".to_owned(), json!(event.kind));
    attempt.insert("at".to_owned(), json!(time(event.occurred_at)));
    Some(attempt)
}

/// Everything that happened, in order. Cancelling is a state, not a fact, and so is the end of a request that became no send: it comes
/// last, because nothing follows.
fn timeline(row: &SendRow, events: Vec<EventRow>) -> Vec<TimelineEntry> {
    let has_event = events.iter().any(|event| event.kind == row.state.as_str());
    let has_quiet_end = !has_event
        && matches!(row.state, SendState::Skipped | SendState::Cancelled | SendState::Expired | SendState::Failed);
    let queued = TimelineEntry::new("queued", *row.created_at, json!({}));
    let facts = events.into_iter().map(|event| TimelineEntry::new(&event.kind, event.occurred_at, event.detail));
    let reason = row.skip_reason.as_ref().or(row.failure_reason.as_ref());
    let detail = reason.map_or_else(|| json!({}), |reason| json!({"reason": reason}));
    let end = row.decided_at.filter(|_| has_quiet_end).map(|at| TimelineEntry::new(row.state.as_str(), at, detail));
    std::iter::once(queued).chain(facts).chain(end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_became_no_send_has_no_facts() {
        let facts: SendFacts = serde_json::from_value(json!({})).unwrap();
        assert!(json!(facts).as_object().unwrap().values().all(Value::is_null));
    }
}
