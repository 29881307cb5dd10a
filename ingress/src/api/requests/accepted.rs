//! `/v1/requests/accepted`: the commands of a product that were accepted, and what became of each. Of bodies, the ids are shown.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sqlx::types::Json;
use uuid::Uuid;

use crate::pipeline::{
    ApiReply, Doc, GivenTime, RequestContext, Routes,
    error::ApiError,
    page::{OptionalTime, Time},
    read_page, resource,
};

pub(super) fn routes() -> Routes {
    let doc = Doc::new(
        "listAcceptedRequests",
        "List accepted requests",
        "Newest first: launches, transactional and one-off mail, enrollments and outcomes of the calling product, \
         over HTTP and NATS, for as long as requests are kept. Of a body, the engine's own ids are shown and nothing \
         else.",
    )
    .page::<AcceptedRequest>("A page of requests");
    Routes::new().get("/v1/requests/accepted", read_page("requests:read", list), doc)
}

schemas::named_enum! {
    /// The kinds of requests that are handled after their answer.
    #[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
    wire enum LoggedKind {
        CampaignLaunch = "campaign-launch",
        Transactional = "transactional",
        Message = "message",
        Enrollment = "enrollment",
        Outcome = "outcome",
    }
}

schemas::named_enum! {
    /// How far a request is.
    #[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
    wire enum LoggedState {
        /// Committed, and not handled yet.
        Accepted = "accepted",
        /// Done.
        Handled = "handled",
        /// Refused by the stage that handles it.
        Rejected = "rejected",
    }
}

/// A request as it was accepted.
#[derive(Debug, Serialize, JsonSchema)]
struct AcceptedRequest {
    /// Of transactional mail, also the send's id.
    request_id: Uuid,
    #[schemars(with = "LoggedKind")]
    kind: String,
    #[schemars(with = "LoggedState")]
    state: String,
    /// Why it was rejected, or what became of it.
    outcome: Option<String>,
    #[schemars(with = "RequestIds")]
    body: Json<RequestIds>,
    received_at: Time,
    handled_at: OptionalTime,
}

/// The ids of the engine in a request's body. What else it says may be about a person.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct RequestIds {
    /// Of a launch.
    #[serde(skip_serializing_if = "Option::is_none")]
    campaign_id: Option<Uuid>,
    /// Of a one-off message.
    #[serde(skip_serializing_if = "Option::is_none")]
    message_id: Option<Uuid>,
    /// Of transactional mail, like the two below.
    #[serde(skip_serializing_if = "Option::is_none")]
    send_id: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    template_id: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sender_id: Option<Uuid>,
}

resource!(AcceptedRequest, "request", "requests", row => (*row.received_at, row.request_id));

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListAcceptedRequests {
    kind: Option<LoggedKind>,
    state: Option<LoggedState>,
    /// Received not before this time.
    since: Option<GivenTime>,
    /// Received before this time.
    until: Option<GivenTime>,
}

async fn list(ctx: &mut RequestContext, query: ListAcceptedRequests) -> Result<ApiReply, ApiError> {
    let (tenant, caller, page) = (ctx.tenant, Arc::clone(&ctx.caller), ctx.page);
    let rows = sqlx::query_file_as!(
        AcceptedRequest,
        "queries/requests.sql",
        tenant,
        caller.product,
        caller.environment.as_str(),
        query.kind.map(LoggedKind::as_str),
        query.state.map(LoggedState::as_str),
        query.since.map(|at| at.0),
        query.until.map(|at| at.0),
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(ctx.db())
    .await?;
    ApiReply::page(page, rows)
}
