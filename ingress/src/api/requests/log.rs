//! `/v1/requests`: the calls of a product for a tenant, and how each was answered.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::pipeline::{
    ApiReply, Doc, GivenTime, RequestContext, Routes, error::ApiError, page::Time, read_page, resource, types::Line,
};

/// Longest name of an operation, in characters.
const OPERATION_MAX: usize = 100;
const STATUS_MIN: u16 = 100;
const STATUS_MAX: u16 = 599;

pub(super) fn routes() -> Routes {
    let doc = Doc::new(
        "listRequestLog",
        "List calls and their answers",
        "Newest first: the calls of the calling product for the tenant, over HTTP and NATS, each at most a few seconds after its answer and \
         for as long as the installation keeps them (`request-log-days`). It has every POST, PATCH and DELETE, and every refused call; \
         reads that succeed are left out, and so are calls that name no tenant and dry runs. An array that is published on NATS has an \
         entry for what is accepted and one for each item that is refused. No bodies, queries or values of paths are kept.",
    )
    .page::<LoggedRequest>("A page of calls");
    Routes::new().get("/v1/requests", read_page("requests:read", list), doc)
}

schemas::named_enum! {
    /// How a call came.
    #[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
    wire enum Via {
        Http = "http",
        Bus = "bus",
    }
}

/// A call and its answer.
#[derive(Debug, Serialize, JsonSchema)]
struct LoggedRequest {
    entry_id: Uuid,
    /// The operation, as this document names it.
    operation: String,
    #[schemars(range(min = STATUS_MIN, max = STATUS_MAX))]
    status: i16,
    /// Why it was refused: the code of the answer. Null of a call that was not.
    error: Option<String>,
    /// Where its first fault is. Names that this document does not have are left out.
    field: Option<String>,
    /// Whether it was a repeat, and got the answer to the first call with its `Idempotency-Key`.
    replayed: bool,
    #[schemars(with = "Via")]
    via: String,
    /// The API key; of calls over NATS an id that stands for the product.
    key_id: Uuid,
    /// The `X-Request-Id` of the answer. Null of items of arrays that were published on NATS, and of calls there that were refused
    /// unread.
    request_id: Option<String>,
    #[schemars(range(min = 0))]
    duration_ms: i32,
    /// When it was answered.
    at: Time,
}

resource!(LoggedRequest, "request", "requests", row => (*row.at, row.entry_id));

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListRequestLog {
    /// This operation only, such as `createContact`.
    #[schemars(with = "Option<Line<OPERATION_MAX>>")]
    operation: Option<String>,
    /// Answered with this status.
    #[schemars(range(min = STATUS_MIN, max = STATUS_MAX))]
    status: Option<u16>,
    /// True for refused calls only, false for all others.
    refused: Option<bool>,
    /// Calls with this API key.
    key_id: Option<Uuid>,
    /// Answered not before this time.
    since: Option<GivenTime>,
    /// Answered before this time.
    until: Option<GivenTime>,
}

/// Served by the primary key, or by `request_log_by_operation`, `request_log_by_key` or `request_log_refused`.
async fn list(ctx: &mut RequestContext, query: ListRequestLog) -> Result<ApiReply, ApiError> {
    let status = query.status.map(checked).transpose()?;
    let (tenant, caller, page) = (ctx.tenant, Arc::clone(&ctx.caller), ctx.page);
    let rows = sqlx::query_as!(
        LoggedRequest,
        r#"select id as entry_id, operation, status, error, field, replayed, via, key_id, request_id, duration_ms, at
           from request_log
           where tenant_id = $1 and product = $2 and environment = $3 and ($4::text is null or operation = $4)
             and ($5::smallint is null or status = $5) and ($6::boolean is null or (status >= 400) = $6)
             and ($7::uuid is null or key_id = $7) and ($8::timestamptz is null or at >= $8)
             and ($9::timestamptz is null or at < $9) and ($10::timestamptz is null or (at, id) < ($10, $11::uuid))
           order by at desc, id desc limit $12"#,
        tenant,
        caller.product,
        caller.environment.as_str(),
        query.operation,
        status,
        query.refused,
        query.key_id,
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

fn checked(status: u16) -> Result<i16, ApiError> {
    i16::try_from(status)
        .ok()
        .filter(|_| (STATUS_MIN..=STATUS_MAX).contains(&status))
        .ok_or_else(|| ApiError::invalid("status", "out_of_range", "must be 100 to 599"))
}
