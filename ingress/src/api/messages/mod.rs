//! `POST /v1/messages`: a message of its own to a few people, dispatched while the caller waits.
//!
//! Accepting it is one transaction, like every write: contacts, content, recipients, attachments, request. Then the pipeline has
//! it, and the answer waits for what it makes of it ([`dispatch`]). Subject and bodies are taken as they stand: the caller wrote
//! this very message, so nothing in it is Liquid. Class business is operational mail: no footer, no unsubscribe headers, no
//! tracking of opens and clicks.

mod attachment;
mod dispatch;
mod doc;
mod draft;
mod rate;
pub(crate) mod store;

use ledger::gate;
use runtime::{Job, Publication, trace};
use schemas::{Classification, MessageKind, RequestAnnounced, RequestKind, subjects};

use self::{
    attachment::{Attachment, Upload},
    draft::{Draft, SendMessage},
    store::NewMessage,
};
use super::{campaigns::quota, senders::store as senders};
use crate::pipeline::{
    Before, Reply, RequestContext, Routes, body::MESSAGE_BODY_MAX_BYTES, error::ApiError, write_and_wait,
};

/// What one-off messages are to the gate.
const CLASSIFICATION: Classification = Classification::Operational;

/// What is read of attachments by processes of readers.
pub(crate) const READER_JOB: Job = attachment::JOB;

/// The routes.
pub(crate) fn routes() -> Routes {
    let endpoint = write_and_wait(
        "messages:send",
        MESSAGE_BODY_MAX_BYTES,
        |before, body| Box::pin(prepare(before, body)),
        send,
        dispatch::outcome,
    );
    Routes::new().post("/v1/messages", endpoint, doc::send)
}

/// A message whose words are good, and what is known of its attachments.
type Prepared = Result<(Draft, Result<Vec<Attachment>, ApiError>), ApiError>;

/// Checks the words of a message and looks into its attachments.
async fn prepare(before: Before, body: SendMessage) -> Prepared {
    let (draft, uploads) = draft::read(body)?;
    let attachments = if uploads.is_empty() { Ok(Vec::new()) } else { look_into(&before, uploads).await };
    Ok((draft, attachments))
}

/// Looks into attachments, if their tenant may send a message at all: a look costs more than all else.
async fn look_into(before: &Before, uploads: Vec<Upload>) -> Result<Vec<Attachment>, ApiError> {
    let tenant = before.tenant().await?;
    let limit = before.ingress.settings.message_rate_per_hour;
    if limit > 0 {
        let mut db = before.ingress.by_key.read(tenant).await?;
        let recent = rate::recent(&mut db, tenant, None).await?;
        drop(db);
        rate::check(&recent, limit)?;
    }
    attachment::admit(tenant).await?;
    attachment::inspect(&before.ingress.reader, uploads).await
}

async fn send(ctx: &mut RequestContext, prepared: Prepared) -> Result<Reply, ApiError> {
    let (draft, attachments) = prepared?;
    let tenant = ctx.tenant;
    let sender = senders::readiness(ctx.db(), tenant, Some(draft.sender_id)).await?;
    if !sender.is_some_and(|sender| sender.may_send()) {
        return Err(ApiError::forbidden("domain_not_verified")
            .detail("sender_id must name a sender of the tenant whose domain is verified"));
    }
    let attachments = attachments?;
    let contacts = store::find_or_create_contacts(ctx.db(), tenant, &draft).await?;
    let standings = store::standings(ctx.db(), tenant, &contacts).await?;
    let open = standings
        .iter()
        .filter(|standing| gate::decide_recipient(standing, MessageKind::OneOff, CLASSIFICATION).is_none())
        .count();
    if open == 0 {
        return Err(all_suppressed());
    }
    let new = NewMessage { id: schemas::new_batch_id(), draft: &draft, contacts: &contacts, metered: open };
    store::insert(ctx.db(), tenant, &new, attachments).await?;
    store::insert_request(ctx, new.id).await?;
    trace::keep(ctx.db(), tenant, new.id).await?;
    meter(ctx, &new).await?;
    announce(ctx, &new)?;
    Ok(Reply::later(new.id))
}

/// Nobody may be mailed.
fn all_suppressed() -> ApiError {
    ApiError::unprocessable("all_recipients_suppressed")
        .detail("every recipient is suppressed or archived; GET /v1/suppressions tells why")
}

/// The hourly limit, then the quota. Last, because the tenant's messages wait for each other from here to the commit.
async fn meter(ctx: &mut RequestContext, new: &NewMessage<'_>) -> Result<(), ApiError> {
    let (tenant, limit) = (ctx.tenant, ctx.ingress.settings.message_rate_per_hour);
    if limit > 0 {
        rate::lock(ctx.db(), tenant).await?;
        // In a statement of its own, whose snapshot is taken under the lock.
        let recent = rate::recent(ctx.db(), tenant, Some(new.id)).await?;
        rate::check(&recent, limit)?;
    }
    let left = quota::remaining(ctx).await?;
    quota::check(&left, i64::try_from(new.metered).unwrap_or(i64::MAX))
}

fn announce(ctx: &mut RequestContext, new: &NewMessage<'_>) -> Result<(), ApiError> {
    let ring = RequestAnnounced::of(ctx.tenant, new.id, RequestKind::Message).telling(ctx.ingress.inbox.subject());
    let subject = subjects::accepted(&ctx.caller.product, ctx.caller.environment, RequestKind::Message);
    let ring = Publication::json(subject, format!("request-{}", new.id.simple()), &ring);
    ctx.announce(ring.map_err(|error| ApiError::unexpected(&error))?);
    Ok(())
}
