//! `POST /hooks/<provider>/<connection id>`: webhook events of providers about mail of a tenant's own account.
//!
//! There is no API key: the connection in the path names the tenant, and the provider's signature proves that the event comes from
//! it, for this account, now and for the first time. A 2xx means that the raw event is committed; the engagement stage reads it.
//! An event without a valid signature is answered 401 and not stored.
//!
//! A provider repeats a request without an answer. A repeat with a new signature is a second delivery: it is answered 200 and not
//! stored again. A repeat with the same signature is answered like a replay attack: the event is in the ledger already.

mod check;
mod connection;
mod raw;
pub(crate) mod shared;
mod store;

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use chrono::Utc;
use http::{HeaderMap, StatusCode};
use runtime::Counter;
use schemars::JsonSchema;
use schemas::ProviderKind;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use self::{check::fault, connection::HOOK_PURPOSE};
use self::{
    check::{EventCheck, EventRefusal},
    raw::RawBody,
};
use crate::{
    pipeline::{ApiReply, Doc, Routes, error::ApiError, observe::no_such_path, open},
    state::Ingress,
};

/// What a provider that sends too much should wait, in seconds.
const RETRY_SECONDS: u64 = 2;

/// Where a provider sends the events of a connection; `None` for one that reports nothing by HTTP.
#[must_use]
pub fn path_of(provider: &str, connection: Uuid) -> Option<String> {
    ProviderKind::HTTP.contains(&provider).then(|| format!("/hooks/{provider}/{connection}"))
}

pub(crate) fn routes() -> Routes {
    Routes::new().post(
        "/hooks/{provider}/{connection}",
        open(take),
        Doc::new(
            "takeProviderEvent",
            "Receive a provider's event",
            "Called by the providers of tenants' own accounts: Amazon SES through SNS, Postmark, SendGrid, \
                 Mailgun, Resend, with their bodies, up to 1 MB; inbound mail of Postmark, SendGrid or Mailgun for \
                 the tenant, up to 40 MB. Each event must carry its provider's proof (SNS signature and topic; \
                 Postmark's user and password; the signatures of SendGrid, Mailgun, Resend) and be fresh; SNS \
                 subscriptions are confirmed. Inbound mail is a reply if `In-Reply-To` or `References` names one of \
                 our messages. Other inbound mail is ignored, and all that of Resend, which does not name the \
                 message it answers. 200 means that the event is stored. An event without proof is refused and not \
                 stored.",
        )
        .path_parameters::<HookPath>()
        .answer::<EventTaken>(200, "Stored, or known already")
        .refuses(400, &["incomplete_body"])
        .refuses(401, &["invalid_signature", "stale_timestamp", "replayed_event"])
        .refuses(404, &["not_found"])
        .refuses(408, &["request_timeout"])
        .refuses(413, &["body_too_large"])
        .refuses(429, &["rate_limit_exceeded"])
        .refuses(503, &["unavailable"]),
    )
}

#[derive(Debug, Deserialize, JsonSchema)]
struct HookPath {
    #[schemars(extend("enum" = ProviderKind::HTTP))]
    provider: String,
    /// The provider connection, as `postrider provider` names it.
    #[schemars(with = "Uuid")]
    connection: String,
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
    let Some(provider) = ProviderKind::HTTP.into_iter().find(|known| *known == provider) else {
        return no_such_path().await.into_response();
    };
    match accept(&ingress, provider, &connection, headers, body).await {
        Ok(outcome) => {
            count(provider, outcome);
            ApiReply::ok(&EventTaken {}).into_response()
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

fn too_many() -> ApiError {
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded").retry_after(RETRY_SECONDS)
}

/// Checks and stores one event. Returns the outcome for the metric.
async fn accept(
    ingress: &Arc<Ingress>,
    provider: &'static str,
    connection: &str,
    headers: HeaderMap,
    body: Body,
) -> Result<&'static str, ApiError> {
    let hooks = &ingress.hooks;
    // An unknown connection is answered like a forged event.
    let id = schemas::parse_id(connection).map_err(|_| EventRefusal::Forged)?;
    if !hooks.connections.requests.admit(id, 1).await {
        return Err(too_many());
    }
    let connection = hooks.connections.find(&ingress.pool, &ingress.vault, id).await?;
    let connection = connection.filter(|found| found.provider == provider).ok_or(EventRefusal::Forged)?;
    let raw = RawBody::read(provider, id, body, &headers, ingress.settings.http_body_timeout).await?;
    let checked = check::check(&hooks.sns, provider, &connection, &headers, &raw, Utc::now()).await?;
    // Behind the check, so that no event without proof holds one.
    let _permit = connection::permit(&hooks.permits).await?;
    let proof = match checked {
        EventCheck::Event(proof) => proof,
        EventCheck::Confirmed { topic } => {
            tracing::info!(provider, connection = %id, tenant_id = %connection.tenant_id, "subscription confirmed");
            let shared = Arc::clone(ingress);
            let work = async move { store::audit_confirmed(&shared.pool, &connection, &topic).await };
            ingress.tasks.spawn(work).await??;
            return Ok("confirmed");
        }
        EventCheck::Nothing => return Ok("ignored"),
    };
    // After the check: others cannot use it up.
    if !hooks.connections.stored.admit(id, raw.kept.len()).await {
        return Err(too_many());
    }
    // In a task of its own: it is stored even if the provider disconnects.
    let shared = Arc::clone(ingress);
    let work = async move { store::store(&shared.pool, &connection, &proof, &raw.kept).await };
    match ingress.tasks.spawn(work).await?? {
        store::StoreResult::New => {
            hooks.stored.notify();
            Ok("stored")
        }
        store::StoreResult::Again => Ok("repeated"),
        store::StoreResult::Replay => Err(EventRefusal::Replayed.into()),
    }
}
