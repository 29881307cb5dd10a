//! `POST /v1/connections/{id}/check`: asks a connection's provider now whether it takes the stored credentials. The ingress cannot read
//! them: it asks in the ledger, a delivery process pings the provider, and the answer waits for what that says.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use chrono::Utc;
use http::StatusCode;
use providers::PingFault;
use schemars::JsonSchema;
use schemas::Environment;
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::find;
use crate::{
    pipeline::{
        ApiReply, Awaited, Doc, NoFields, RequestContext, Routes, body::BODY_MAX_BYTES, error::ApiError, page::Time,
        write_and_wait,
    },
    state::Ingress,
};

/// A check that is so young answers for the next request, too.
const FRESH_SECONDS: f64 = 10.0;
/// A question that has no answer after this time is asked anew.
const LOST_SECONDS: f64 = 60.0;
/// Longest wait for an answer: longer than the delivery process waits for the provider.
const WAIT_MAX: Duration = Duration::from_secs(25);
const READ_EVERY: Duration = Duration::from_millis(500);
const RETRY_PENDING: u64 = 5;

pub(super) fn routes() -> Routes {
    let endpoint = write_and_wait(
        "connections:write",
        BODY_MAX_BYTES,
        |_, body: NoFields| Box::pin(std::future::ready(body)),
        check,
        |ingress, awaited| Box::pin(answer(ingress, awaited)),
    );
    Routes::new().post(
        "/v1/connections/{id}/check",
        endpoint,
        Doc::new(
            "checkConnection",
            "Check a provider connection now",
            "Connects with the stored secret and authenticates; no mail is sent. `error` says why it would carry none. An answer \
             counts for ten seconds, or until the connection is changed. After a 504 ask again: the delivery stage has not \
             answered. In the sandbox, where no provider is asked, every connection is well.",
        )
        .answer::<ConnectionCheck>(200, "What the provider said")
        .refuses(404, &["connection_not_found"])
        .refuses(504, &["check_pending"]),
    )
}

/// What a check found.
#[derive(Debug, Serialize, JsonSchema)]
struct ConnectionCheck {
    connection_id: Uuid,
    /// Whether the provider takes the credentials.
    passed: bool,
    /// Why not.
    #[schemars(extend("enum" = faults_or_null()))]
    error: Option<String>,
    /// How long the provider took.
    #[schemars(with = "Option<u32>")]
    latency_ms: Option<i32>,
    checked_at: Time,
}

/// The values of `error`.
fn faults_or_null() -> Value {
    PingFault::ALL.iter().map(|fault| json!(fault.as_str())).chain([Value::Null]).collect()
}

async fn check(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("connection")?);
    find(ctx, id).await?;
    ctx.audit("provider.check", &id.to_string(), json!({})).await?;
    if ctx.caller.environment == Environment::Sandbox {
        let checked_at = Utc::now().into();
        return ApiReply::ok(&ConnectionCheck {
            connection_id: id,
            passed: true,
            error: None,
            latency_ms: None,
            checked_at,
        });
    }
    // Asks the delivery stage, unless it has just answered or is about to, for the connection as it is. A time in the future is of a clock
    // that was set back since.
    sqlx::query!(
        "insert into connection_checks as k (tenant_id, connection_id) values ($1, $2)
         on conflict (tenant_id, connection_id) do update
         set asked_at = now(), taken_at = null, answered_at = null, error_code = null, latency_ms = null
         where k.answered_at not between clock_timestamp() - make_interval(secs => $3) and clock_timestamp()
            or k.answered_at is null
               and k.asked_at not between clock_timestamp() - make_interval(secs => $4) and clock_timestamp()
            or k.asked_at < (select c.updated_at from provider_connections c where c.tenant_id = $1 and c.id = $2)",
        tenant,
        id,
        FRESH_SECONDS,
        LOST_SECONDS,
    )
    .execute(ctx.db())
    .await?;
    Ok(ApiReply::later(id))
}

/// Waits for the answer to a question that is committed.
async fn answer(ingress: Arc<Ingress>, awaited: Awaited) -> Result<ApiReply, ApiError> {
    let Awaited { tenant, reference: id, .. } = awaited;
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        if let Some(check) = read(&ingress, tenant, id).await? {
            return ApiReply::ok(&check);
        }
        if Instant::now() > deadline || ingress.tasks.is_closed() {
            return Err(ApiError::new(StatusCode::GATEWAY_TIMEOUT, "check_pending")
                .detail("the delivery stage has not answered yet; ask again")
                .retry_after(RETRY_PENDING));
        }
        tokio::time::sleep(READ_EVERY).await;
    }
}

async fn read(ingress: &Ingress, tenant: Uuid, id: Uuid) -> Result<Option<ConnectionCheck>, ApiError> {
    let mut db = ingress.by_key.read(tenant).await?;
    let row = sqlx::query!(
        "select answered_at, error_code, latency_ms from connection_checks where tenant_id = $1 and connection_id = $2",
        tenant,
        id,
    )
    .fetch_optional(&mut *db)
    .await?
    .ok_or_else(|| ApiError::not_found("connection"))?;
    Ok(row.answered_at.map(|checked_at| ConnectionCheck {
        connection_id: id,
        passed: row.error_code.is_none(),
        error: row.error_code,
        latency_ms: row.latency_ms,
        checked_at: checked_at.into(),
    }))
}
