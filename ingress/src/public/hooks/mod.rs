//! `POST /hooks/<provider>/<connection id>`: events of providers about mail they took for a tenant's own account.
//!
//! No API key: the connection in the path says whose event it is, and the event must prove that it comes from the provider, for
//! this account, now, and for the first time. A 2xx means that the raw event is committed; what it says is read by the engagement
//! stage. Whatever is not proven is answered 401 and stored nowhere.
//!
//! A provider repeats a request whose answer it did not hear. One that was signed anew is a second delivery: 200, nothing more is
//! stored. One that is the same to the byte of its proof cannot be told from a replay, and is answered as one: what it says is in
//! the ledger already, so nothing is lost by it.

mod check;
mod connection;
mod doc;
mod raw;
pub(crate) mod shared;
mod store;

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use chrono::Utc;
use http::{HeaderMap, StatusCode};
use runtime::Counter;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

pub use self::{check::fault, connection::HOOK_PURPOSE};
use self::{
    check::{Checked, Proof, Refusal},
    connection::Connection,
    raw::Raw,
};
use crate::{
    pipeline::{Reply, Routes, error::ApiError, observe::no_such_path, open},
    state::Ingress,
};

/// How long a request waits for a permit before the provider is asked to come again.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(5);
/// What a provider that sends too much should wait, in seconds.
const RETRY_SECONDS: u64 = 2;

/// Providers that report by HTTP.
const PROVIDERS: [&str; 5] = ["ses", "postmark", "sendgrid", "mailgun", "resend"];

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new().post("/hooks/{provider}/{connection}", open(take), doc::take)
}

#[derive(Debug, Deserialize, JsonSchema)]
struct HookPath {
    #[schemars(extend("enum" = PROVIDERS))]
    provider: String,
    /// The provider connection, as `postrider provider` names it.
    #[schemars(with = "Uuid")]
    connection: String,
}

/// As the provider sends it; SendGrid sends an array.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "described, not built")]
enum ProviderEvent {
    One(Map<String, Value>),
    Many(Vec<Map<String, Value>>),
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct EventTaken {}

async fn take(
    State(ingress): State<Arc<Ingress>>,
    Path(HookPath { provider, connection }): Path<HookPath>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let Some(provider) = PROVIDERS.into_iter().find(|known| *known == provider) else {
        return no_such_path().await.into_response();
    };
    match accept(&ingress, provider, &connection, headers, body).await {
        Ok(outcome) => {
            count(provider, outcome);
            Reply::ok(&EventTaken {}).into_response()
        }
        Err(error) => {
            let outcome = match error.status {
                StatusCode::TOO_MANY_REQUESTS => "throttled",
                status if status.is_server_error() => "failed",
                _ => "refused",
            };
            count(provider, outcome);
            tracing::info!(provider, code = %error.code, "a provider's event was not taken");
            error.into_response()
        }
    }
}

fn count(provider: &'static str, outcome: &'static str) {
    Counter::HookRequestsTotal.add(1, [("provider", provider), ("outcome", outcome)]);
}

/// Checks and stores one event; answers the outcome for the metric.
async fn accept(
    ingress: &Arc<Ingress>,
    provider: &'static str,
    connection: &str,
    headers: HeaderMap,
    body: Body,
) -> Result<&'static str, ApiError> {
    let hooks = &ingress.hooks;
    // The same answer for a connection that is not there as for an event that is not its provider's.
    let id = schemas::parse_id(connection).map_err(|_| Refusal::Forged)?;
    if !hooks.connections.admit(id).await {
        return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded").retry_after(RETRY_SECONDS));
    }
    let connection = hooks.connections.find(&ingress.pool, &ingress.vault, id).await?;
    let connection = connection.filter(|found| found.provider == provider).ok_or(Refusal::Forged)?;
    let raw = Raw::read(provider, body, &headers, ingress.settings.http_body_timeout).await?;
    let permit = tokio::time::timeout(PERMIT_TIMEOUT, hooks.permits.acquire()).await;
    let _permit = permit.ok().and_then(Result::ok).ok_or_else(ApiError::unavailable)?;
    let proof = match check::check(&hooks.sns, provider, &connection, &headers, &raw, Utc::now()).await? {
        Checked::Event(proof) => proof,
        Checked::Confirmed { topic } => {
            tracing::info!(provider, connection = %id, tenant_id = %connection.tenant_id, "subscription confirmed");
            keep_record(ingress, &connection, id, &topic).await?;
            return Ok("confirmed");
        }
        Checked::Nothing => return Ok("ignored"),
    };
    keep(ingress, connection, id, proof, raw.kept).await
}

/// Stores an event in a task of its own: it is stored also if the provider hangs up meanwhile.
async fn keep(
    ingress: &Arc<Ingress>,
    connection: Arc<Connection>,
    id: Uuid,
    proof: Proof,
    raw: Bytes,
) -> Result<&'static str, ApiError> {
    let shared = Arc::clone(ingress);
    let work = async move { store::store(&shared.pool, &connection, id, &proof, &raw).await };
    let stored = ingress.tasks.spawn(work).await??;
    match stored {
        store::Stored::New => {
            ingress.hooks.stored.notify();
            Ok("stored")
        }
        store::Stored::Again => Ok("repeated"),
        store::Stored::Replay => Err(Refusal::Replayed.into()),
    }
}

async fn keep_record(ingress: &Arc<Ingress>, connection: &Connection, id: Uuid, topic: &str) -> Result<(), ApiError> {
    let (shared, tenant, topic) = (Arc::clone(ingress), connection.tenant_id, topic.to_owned());
    let work = async move { store::confirmed(&shared.pool, tenant, id, &topic).await };
    Ok(ingress.tasks.spawn(work).await??)
}
