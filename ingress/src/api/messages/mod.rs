//! `POST /v1/messages`: a one-off message to a few recipients, sent while the caller waits.
//!
//! Accepting it is one transaction, like every write: contacts, content, recipients, attachments, request. Then the stages send it,
//! and the answer waits for the [`outcome`]. Subject and bodies are sent as written: they are not Liquid templates.
//! One-off messages are operational mail: no footer, no unsubscribe headers, no tracking of opens and clicks.

pub(crate) mod attachment;
pub(crate) mod draft;
mod outcome;
mod rate;
pub(crate) mod store;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use ledger::{
    gate,
    requests::{self, RequestRow},
    resolve::message,
};
use runtime::{Job, trace};
use schemars::JsonSchema;
use schemas::{
    MessageKind, RequestKind, SendId, SkipReason,
    messages::{MailOptions, MessagePayload},
};
use serde::Serialize;
use serde_json::json;
use uuid::Uuid;

use self::{
    attachment::{Upload, ValidAttachment},
    draft::{MessageDraft, SendMessage},
};
use super::{campaigns::quota, senders::store as senders};
use crate::pipeline::{
    ApiReply, Doc, PreparationContext, RequestContext, Routes,
    body::MESSAGE_BODY_MAX_BYTES,
    doc::ID,
    error::{ApiError, counts_by_reason},
    page::Time,
    write_and_wait,
};

/// The job of the reader processes that inspects attachments.
pub(crate) const READER_JOB: Job = attachment::JOB;

pub(crate) fn routes() -> Routes {
    let endpoint = write_and_wait(
        "messages:send",
        MESSAGE_BODY_MAX_BYTES,
        |context, body| Box::pin(prepare(context, body)),
        send,
        outcome::outcome,
    );
    Routes::new().post(
        "/v1/messages",
        endpoint,
        Doc::new(
            "sendMessage",
            "Send one message now",
            "Each recipient in `to` gets a mail of its own; one in `cc` or `bcc` a copy of it; the answer waits, at most 30 seconds, until all are decided. \
                 Subject, HTML and text are sent as they stand: nothing in them is Liquid. Class `business` is \
                 operational mail: no footer, no unsubscribe headers, no tracking; marketing opt-outs do not block \
                 it, hard suppressions do, and a blocked recipient is listed in `skipped`. Counts by recipient \
                 against the send quota, and once against the hourly limit of messages. Send an `Idempotency-Key`: after a 504, or when no \
                 answer came, a repeat sends nothing twice and answers the outcome. A 502 says the codes of the \
                 provider in `detail`. 504 `outcome_unknown` is final unless evidence comes: the mail may have \
                 arrived, and is not tried again. With `scheduled_at` the answer is 202 at once. `GET /v1/sends/{send_id}` follows each mail.",
        )
        .example(json!({
            "sender_id": ID, "to": [{"email": "ann@example.com", "name": "Ann Lee"}], "subject": "Your certificate",
            "html": "<p>Please find it attached.</p>", "message_class": "business",
            "attachments": [{"filename": "note.txt", "content_base64": "SGVsbG8=", "content_type": "text/plain"}],
        }))
        .answer::<outcome::MessageSent>(200, "Dispatched: at least one recipient was accepted")
        .answer::<MessageScheduled>(202, "Stored until `scheduled_at`")
        .refuses(403, &["domain_not_verified", "tenant_suspended"])
        .refuses(413, &["attachments_too_large"])
        .refuses(422, &["use_campaigns_for_marketing", "all_recipients_suppressed"])
        .refuses(429, &["message_rate_exceeded", "send_quota_exceeded"])
        .refuses(502, &["provider_rejected"])
        .refuses(504, &["dispatch_pending", "outcome_unknown"]),
    )
}

/// A valid message, and the result of inspecting its attachments.
type PreparedMessage = Result<(MessageDraft, Result<Vec<ValidAttachment>, ApiError>), ApiError>;

async fn prepare(context: PreparationContext, body: SendMessage) -> PreparedMessage {
    let (draft, uploads, invite) = draft::read(body)?;
    let attachments = if uploads.is_empty() { Ok(Vec::new()) } else { inspect_attachments(&context, uploads).await };
    Ok((draft, attachments.map(|attachments| attachments.into_iter().chain(invite).collect())))
}

/// Inspects attachments if the hourly limit of the tenant allows a message: the inspection costs more than all else.
async fn inspect_attachments(
    context: &PreparationContext,
    uploads: Vec<Upload>,
) -> Result<Vec<ValidAttachment>, ApiError> {
    let tenant = context.tenant;
    let limit = context.ingress.settings.message_rate_per_hour;
    if limit > 0 {
        let mut db = context.ingress.by_key.read(tenant).await?;
        let recent = rate::recent(&mut db, tenant, MessageKind::OneOff, None).await?;
        drop(db);
        rate::check(&recent, MessageKind::OneOff, limit)?;
    }
    let (files, inspection) =
        attachment::inspect(&context.ingress.reader, &context.caller.product, tenant, uploads).await?;
    inspection.keep();
    Ok(files)
}

async fn send(ctx: &mut RequestContext, prepared: PreparedMessage) -> Result<ApiReply, ApiError> {
    let (draft, attachments) = prepared?;
    let tenant = ctx.tenant;
    let sender = senders::readiness(ctx.db(), tenant, Some(draft.sender_id)).await?;
    if !sender.is_some_and(|sender| sender.may_send()) {
        let none = "sender_id must name a sender of the tenant whose domain is verified";
        return Err(ApiError::forbidden("domain_not_verified").detail(sender.map_or(none, |sender| sender.why_not())));
    }
    let accepted = accept(ctx, &draft, attachments?, true).await?;
    match draft.due_at() {
        None => Ok(ApiReply::later(accepted.id)),
        Some(due_at) => ApiReply::accepted(&MessageScheduled::of(&draft, &accepted, due_at)),
    }
}

/// The answer to a message that is due later.
#[derive(Debug, Serialize, JsonSchema)]
struct MessageScheduled {
    message_id: Uuid,
    #[schemars(extend("const" = "scheduled"))]
    status: &'static str,
    scheduled_at: Time,
    /// Whether they may be mailed is decided when the message is due.
    recipients: Vec<ScheduledRecipient>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ScheduledRecipient {
    email: String,
    send_id: Uuid,
}

impl MessageScheduled {
    fn of(draft: &MessageDraft, accepted: &MessageAccepted, scheduled_at: DateTime<Utc>) -> Self {
        let recipients = (0..).zip(&draft.recipients).map(|(ordinal, recipient)| ScheduledRecipient {
            email: recipient.address.as_str().to_owned(),
            send_id: SendId::of(accepted.id, ordinal).0,
        });
        let recipients = recipients.collect();
        Self { message_id: accepted.id, status: "scheduled", scheduled_at: scheduled_at.into(), recipients }
    }
}

pub(crate) struct MessageAccepted {
    pub(crate) id: Uuid,
    /// Why a recipient is not mailed, in the order of the recipients; `None`: it is.
    pub(crate) withheld: Vec<Option<SkipReason>>,
}

/// Accepts a message: stores it, counts it against quota and hourly limit, and writes and announces its sends. A scheduled one is announced
/// by a sweep when it is due, and counts against the quota of that time. `waits`: the caller waits for the outcome.
///
/// # Errors
/// 422 `all_recipients_suppressed`, 429 for the hourly limit and the quota.
pub(crate) async fn accept(
    ctx: &mut RequestContext,
    draft: &MessageDraft,
    attachments: Vec<ValidAttachment>,
    waits: bool,
) -> Result<MessageAccepted, ApiError> {
    let tenant = ctx.tenant;
    let contacts = store::find_or_create_contacts(ctx.db(), tenant, draft).await?;
    let known = gate::load_eligibility(ctx.db(), &vec![tenant; contacts.len()], &contacts).await?;
    // A contact that was erased meanwhile is not found.
    let decide = |contact: &Uuid| match known.get(&(tenant, *contact)) {
        Some(eligibility) => gate::decide_recipient(eligibility, draft.kind, draft.classification),
        None => Some(SkipReason::ContactArchived),
    };
    let withheld: Vec<Option<SkipReason>> = contacts.iter().map(decide).collect();
    let open = withheld.iter().filter(|reason| reason.is_none()).count();
    if open == 0 {
        return Err(all_suppressed(withheld.iter().flatten().map(|reason| reason.as_str())));
    }
    let (id, due_at) = (MailOptions::batch_id(draft.options.as_ref()), draft.due_at());
    store::insert_message(ctx.db(), tenant, id, draft, &contacts).await?;
    let (caller, payload) = (Arc::clone(&ctx.caller), MessagePayload { message_id: id });
    let row = RequestRow { id, payload: &payload, options: draft.options.as_ref(), due_at };
    let is_due = due_at.is_none();
    requests::insert(ctx.db(), &caller.requester(tenant), RequestKind::Message, &[row], is_due).await?;
    trace::keep(ctx.db(), tenant, id).await?;
    store::insert_attachments(ctx.db(), tenant, vec![(id, attachments)]).await?;
    meter(ctx, id, draft, open).await?;
    if is_due {
        let notify = waits.then(|| ctx.ingress.reply_inbox.subject().to_owned());
        let batches = message::resolve_accepted(ctx.db(), (tenant, id), &known, notify).await?;
        batches.into_iter().for_each(|batch| ctx.announce(batch));
    }
    Ok(MessageAccepted { id, withheld })
}

/// 422: no recipient may be mailed, for these reasons.
fn all_suppressed<'a>(reasons: impl Iterator<Item = &'a str>) -> ApiError {
    let counts = counts_by_reason(reasons.map(|reason| (reason, 1)));
    ApiError::unprocessable("all_recipients_suppressed")
        .detail(format!("no recipient may be mailed: {counts}; GET /v1/suppressions?email= tells more"))
}

/// The hourly limit, then the quota, against which the open recipients count: those that are not blocked. Late, because the tenant's
/// messages wait for each other from here to the commit; but before the message's own sends are written, which would count.
async fn meter(ctx: &mut RequestContext, id: Uuid, draft: &MessageDraft, open: usize) -> Result<(), ApiError> {
    let (tenant, kind, settings) = (ctx.tenant, draft.kind, &ctx.ingress.settings);
    let limit = match kind {
        MessageKind::Test => settings.campaign_test_rate_per_hour,
        _ => settings.message_rate_per_hour,
    };
    if limit > 0 {
        rate::lock(ctx.db(), tenant).await?;
        // In a statement of its own, whose snapshot is taken under the lock.
        let recent = rate::recent(ctx.db(), tenant, kind, Some(id)).await?;
        rate::check(&recent, kind, limit)?;
    }
    if draft.due_at().is_some() {
        // The compliance stage checks the quota when the message is due.
        return Ok(());
    }
    let left = quota::remaining(ctx).await?;
    quota::check(&left, i64::try_from(open).unwrap_or(i64::MAX))
}
