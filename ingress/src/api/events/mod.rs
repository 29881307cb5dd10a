//! `/v1/events`: what products report about their contacts, kept as facts. They start sequences and end enrollments, and segments ask for
//! them.

mod input;
mod store;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use uuid::Uuid;

pub(crate) use self::input::ProductEventTerms;
use self::input::RecordEvents;
use crate::pipeline::{ApiReply, Doc, RequestContext, Routes, error::ApiError, write_by_key};

pub(crate) fn routes() -> Routes {
    Routes::new().post(
        "/v1/events",
        write_by_key("events:write", record),
        Doc::new(
            "recordEvents",
            "Record an event of the product, or many",
            "What a contact did in the product, such as `trial_started`. An event is a fact: it is kept as long as the \
             ledger, starts the sequences with its name as `trigger_config.event`, ends enrollments of sequences that \
             name it in `exit_on_event`, and segments ask for it with `product_event`. The contact must be known. The \
             same `source_event_id` of a product is recorded once; a repeat is answered with the event that is there. \
             An event that happened more than a day before it is reported is kept, and starts and ends nothing. Many \
             events are up to 500 under `events`, recorded together: a fault in the form of one refuses all, an unknown \
             contact only its own event.",
        )
        .example(json!({
            "name": "trial_started", "email": "ann@example.com", "properties": {"plan": "pro"},
            "source_event_id": "trial-81",
        }))
        .answer::<EventsRecorded>(201, "Recorded")
        .answer::<EventsRecorded>(200, "All were there, or no contact is known")
        .refuses(404, &["contact_not_found"]),
    )
}

/// What came of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum EventStatus {
    /// Recorded by this request.
    Recorded,
    /// Recorded before, with the same `source_event_id`.
    AlreadyRecorded,
    /// There is no such contact; nothing is recorded.
    ContactNotFound,
}

/// What came of one event, or of many in their order.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum EventsRecorded {
    One { status: EventStatus, event_id: Option<Uuid>, contact_id: Option<Uuid> },
    Many { events: Vec<RecordedEvent>, recorded: usize },
}

/// An event with its place in the ledger.
#[derive(Debug, Serialize, JsonSchema)]
struct RecordedEvent {
    status: EventStatus,
    event_id: Option<Uuid>,
    contact_id: Option<Uuid>,
}

async fn record(ctx: &mut RequestContext, body: RecordEvents) -> Result<ApiReply, ApiError> {
    let (events, alone) = body.validate()?;
    let (tenant, caller) = (ctx.tenant, Arc::clone(&ctx.caller));
    ctx.commits_no_facts();
    let mut events = store::record(ctx.db(), tenant, &caller.product, &events).await?;
    let recorded = events.iter().filter(|event| event.status == EventStatus::Recorded).count();
    let answer = match (alone, events.pop()) {
        (true, Some(event)) if event.status == EventStatus::ContactNotFound => {
            return Err(ApiError::not_found("contact"));
        }
        (true, Some(RecordedEvent { status, event_id, contact_id })) => {
            EventsRecorded::One { status, event_id, contact_id }
        }
        (_, last) => {
            events.extend(last);
            EventsRecorded::Many { events, recorded }
        }
    };
    if recorded > 0 { ApiReply::created(&answer) } else { ApiReply::ok(&answer) }
}
