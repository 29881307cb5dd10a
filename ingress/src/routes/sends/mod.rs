//! `GET /v1/sends/{id}`: what became of one message to one recipient, and why.

pub(crate) mod doc;
mod source;
pub(crate) mod store;

use schemas::SendState;
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use self::store::{EventRow, PendingRow, SendRow};
use crate::{
    act::{Act, NoParameters, Reply, Routes, read, time},
    error::ApiError,
};

/// Event types that are attempts: the server's answer, or its silence.
const ATTEMPTS: [&str; 4] = ["sent", "deferred", "failed", "unknown"];

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new().get("/v1/sends/{id}", read("sends:read", one), doc::show).get(
        "/v1/sends/{id}/source",
        read("sends:read", source::read),
        doc::source,
    )
}

async fn one(act: &mut Act, _: NoParameters) -> Result<Reply, ApiError> {
    let (tenant, id) = (act.tenant, act.id("send")?);
    let send = one_record(act.db(), tenant, id).await?;
    Reply::untyped_ok(&json!({"ok": true, "send": send}))
}

/// A send, or the request that it will come from.
pub(crate) async fn one_record(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<Value, ApiError> {
    if let Some(row) = store::get(&mut *db, tenant, id).await? {
        let events = store::events(db, tenant, id).await?;
        return Ok(record(&row, &events));
    }
    // Accepted and not resolved yet: the caller has its id, so it is there.
    let pending = store::pending(db, tenant, id).await?.ok_or_else(|| ApiError::not_found("send"))?;
    Ok(pending_record(id, &pending))
}

/// A send in a list.
pub(crate) fn list_record(row: &SendRow) -> Value {
    json!({
        "send_id": row.id,
        "message_kind": row.message_kind,
        "campaign_id": row.campaign_id,
        "message_id": row.message_id(),
        "sequence_id": row.sequence_id,
        "enrollment_id": row.enrollment_id,
        "step_id": row.step_id,
        "variant": row.variant,
        "template_id": row.template_id,
        "template_version": row.template_version,
        "contact_id": row.contact_id,
        "email": row.email,
        "state": row.state,
        "skip_reason": row.reason.as_ref().filter(|_| row.state == SendState::Skipped),
        "failure_reason": row.reason.as_ref().filter(|_| row.state != SendState::Skipped),
        "attempt_count": row.attempts,
        "smtp_code": row.smtp_code,
        "enhanced_code": row.enhanced_code,
        "response": row.response,
        "provider": row.provider,
        "provider_message_id": row.provider_message_id,
        "next_attempt_at": row.next_attempt_at.map(time).filter(|_| row.state == SendState::Deferred),
        "decided_at": row.decided_at.map(time),
        "facts": {
            "delivered_at": row.delivered_at.map(time),
            "bounced_at": row.bounced_at.map(time),
            "complained_at": row.complained_at.map(time),
            "opened_at": row.opened_at.map(time),
            "human_opened_at": row.human_opened_at.map(time),
            "clicked_at": row.clicked_at.map(time),
            "human_clicked_at": row.human_clicked_at.map(time),
            "unsubscribed_at": row.unsubscribed_at.map(time),
            "replied_at": row.replied_at.map(time),
        },
        "created_at": time(row.created_at),
    })
}

/// A send with all there is to know of it.
pub(crate) fn record(row: &SendRow, events: &[EventRow]) -> Value {
    let mut record = list_record(row);
    record["email_type"] = json!(row.classification);
    record["lane"] = json!(row.lane);
    record["content_id"] = json!(row.content_id);
    record["sender_id"] = json!(row.sender_id);
    record["attempts"] = events.iter().filter(|event| ATTEMPTS.contains(&event.kind.as_str())).map(attempt).collect();
    record["timeline"] = timeline(row, events);
    record
}

/// One attempt: the event's detail (SMTP code, enhanced code, response, number) with its outcome and time.
fn attempt(event: &EventRow) -> Value {
    let mut attempt = match &event.detail {
        Value::Object(detail) => detail.clone(),
        _ => serde_json::Map::new(),
    };
    attempt.insert("outcome".to_owned(), json!(event.kind));
    attempt.insert("at".to_owned(), json!(time(event.occurred_at)));
    Value::Object(attempt)
}

/// Everything that happened, in order. Cancelling is a state, not a fact; it comes last, because nothing follows.
fn timeline(row: &SendRow, events: &[EventRow]) -> Value {
    let entry = |kind: &str, at, detail: &Value| json!({"type": kind, "at": time(at), "detail": detail});
    let queued = entry("queued", row.created_at, &json!({}));
    let facts = events.iter().map(|event| entry(&event.kind, event.occurred_at, &event.detail));
    let is_told = events.iter().any(|event| event.kind == row.state.as_str());
    let quiet_end = !is_told && matches!(row.state, SendState::Skipped | SendState::Cancelled | SendState::Expired);
    let end =
        row.decided_at.filter(|_| quiet_end).map(|at| entry(row.state.as_str(), at, &json!({"reason": row.reason})));
    std::iter::once(queued).chain(facts).chain(end).collect()
}

/// The record of a send that is still a request: the same fields.
fn pending_record(id: Uuid, row: &PendingRow) -> Value {
    let state = if row.rejected { SendState::Failed } else { SendState::Queued };
    let mut timeline = vec![json!({"type": "queued", "at": time(row.received_at), "detail": {}})];
    if let Some(at) = row.handled_at.filter(|_| row.rejected) {
        timeline.push(json!({"type": "failed", "at": time(at), "detail": {"reason": row.outcome}}));
    }
    json!({
        "send_id": id,
        "message_kind": row.message_kind,
        "campaign_id": null,
        "message_id": row.message_id,
        "sequence_id": row.sequence_id,
        "enrollment_id": row.enrollment_id,
        "step_id": row.step_id,
        "variant": null,
        "template_id": row.template_id,
        "template_version": row.template_version,
        "contact_id": row.contact_id,
        "email": row.email,
        "state": state,
        "skip_reason": null,
        "failure_reason": row.outcome.as_ref().filter(|_| row.rejected),
        "attempt_count": 0,
        "smtp_code": null,
        "enhanced_code": null,
        "response": null,
        "provider": null,
        "provider_message_id": null,
        "next_attempt_at": null,
        "decided_at": row.handled_at.map(time).filter(|_| row.rejected),
        "facts": {
            "delivered_at": null, "bounced_at": null, "complained_at": null, "opened_at": null, "human_opened_at": null,
            "clicked_at": null, "human_clicked_at": null, "unsubscribed_at": null, "replied_at": null,
        },
        "created_at": time(row.received_at),
        "email_type": row.classification,
        "lane": "priority",
        "content_id": row.content_id,
        "sender_id": row.sender_id,
        "attempts": [],
        "timeline": timeline,
    })
}
