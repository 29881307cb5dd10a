//! `/v1/requests`: the commands of a product that were accepted, and what became of each. Bodies are shown without their texts.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use schemas::parse_id;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::pipeline::{
    ApiReply, Doc, RequestContext, Resource, Routes,
    error::ApiError,
    page::{as_optional_time, as_time},
    read_page,
};

/// What stands where a text or a number was.
const REDACTED: &str = "[redacted]";

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new().get(
        "/v1/requests",
        read_page("requests:read", list),
        Doc::new(
            "listRequests",
            "List accepted requests",
            "Newest first: launches, transactional and one-off mail, enrollments and outcomes of the calling product, \
             over HTTP and NATS, for as long as requests are kept. Of a body, ids and truth values are shown; texts \
             and numbers are not.",
        )
        .page::<AcceptedRequest>("A page of requests"),
    )
}

schemas::named_enum! {
    /// The kinds of requests that are handled after their answer.
    #[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    enum LoggedKind {
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
    #[serde(rename_all = "snake_case")]
    enum LoggedState {
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
    /// The body, without its texts and numbers.
    #[schemars(with = "Map<String, Value>")]
    body: Value,
    #[serde(serialize_with = "as_time")]
    received_at: DateTime<Utc>,
    #[serde(serialize_with = "as_optional_time")]
    handled_at: Option<DateTime<Utc>>,
}

impl Resource for AcceptedRequest {
    const ONE: &'static str = "request";
    const MANY: &'static str = "requests";
    const NOT_FOUND: &'static str = "request_not_found";

    fn position(&self) -> (DateTime<Utc>, Uuid) {
        (self.received_at, self.request_id)
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListRequests {
    kind: Option<LoggedKind>,
    state: Option<LoggedState>,
    /// Received not before this time.
    since: Option<DateTime<Utc>>,
    /// Received before this time.
    until: Option<DateTime<Utc>>,
}

/// Ids begin with the time: served by the primary key.
async fn list(ctx: &mut RequestContext, query: ListRequests) -> Result<ApiReply, ApiError> {
    let (tenant, page) = (ctx.tenant, ctx.page);
    let (product, environment) = (ctx.caller.product.clone(), ctx.caller.environment);
    let mut rows = sqlx::query_as!(
        AcceptedRequest,
        "select id as request_id, kind, state, outcome, payload as body, received_at, handled_at
         from requests
         where tenant_id = $1 and product = $2 and environment = $3 and ($4::text is null or kind = $4)
           and ($5::text is null or state = $5) and ($6::timestamptz is null or id >= first_id_at($6))
           and ($7::timestamptz is null or id < first_id_at($7)) and ($8::uuid is null or id < $8)
         order by id desc limit $9",
        tenant,
        product,
        environment.as_str(),
        query.kind.map(LoggedKind::as_str),
        query.state.map(LoggedState::as_str),
        query.since,
        query.until,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(ctx.db())
    .await?;
    for row in &mut rows {
        redact(&mut row.body);
    }
    ApiReply::page(page, rows)
}

/// Takes out everything that may be about a person: ids, truth values and the names of fields stay.
fn redact(value: &mut Value) {
    match value {
        Value::Null | Value::Bool(_) => {}
        Value::String(text) if parse_id(text).is_ok() => {}
        Value::String(_) | Value::Number(_) => *value = Value::from(REDACTED),
        Value::Array(items) => items.iter_mut().for_each(redact),
        Value::Object(fields) => fields.values_mut().for_each(redact),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_body_shows_ids_and_nothing_about_a_person() {
        let id = "0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e2f";
        let mut body = json!({"template_id": id, "address": "ann@example.com", "data": {"code": 4711, "items": ["a", true, null]}});
        redact(&mut body);
        let expected = json!({
            "template_id": id, "address": REDACTED, "data": {"code": REDACTED, "items": [REDACTED, true, null]},
        });
        assert_eq!(body, expected);
    }
}
