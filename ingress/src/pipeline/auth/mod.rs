//! Authenticates and authorises a request.

pub(crate) mod admission;
mod credentials;
pub(crate) mod keys;
pub mod signature;
pub mod sweep;

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use chrono::Utc;
use http::{StatusCode, request::Parts};
use uuid::Uuid;

use self::{
    admission::{AdmissionRequest, RateState},
    credentials::{Credentials, Signed},
    keys::Caller,
    signature::SignedParts,
};
use crate::{
    pipeline::{KeyAccess, body, error::ApiError, observed::Observed, page::time, peer::Peer},
    state::Ingress,
};

/// A request whose caller is authenticated and has the scope.
#[derive(Debug)]
pub(crate) struct AdmittedRequest {
    pub caller: Arc<Caller>,
    /// The body, exactly as received.
    pub body: Bytes,
    /// The tenant that the request names, if it is linked. It is not checked yet that the key may use it.
    pub tenant: Option<Uuid>,
}

/// A caller that the permissions of the bus have authenticated. It is an extension of a request made in this process: no request over
/// HTTP can have one.
#[derive(Debug, Clone)]
pub(crate) struct TrustedCaller {
    pub caller: Arc<Caller>,
    /// Run the handler, answer, and roll back.
    pub dry_run: bool,
    /// Answer at the commit: the caller does not wait for an outcome after it.
    pub skips_outcome: bool,
}

/// Checks credentials, timestamp, signature, nonce, rate limit and scope, in this order. What is observed of caller, tenant and rate is
/// filled in as soon as it is known, so that refusals carry it, too.
///
/// # Errors
/// 401 and 403 for who asks, 408 and 413 for the body, 429 `rate_limit_exceeded`.
pub(super) async fn admit(
    ingress: &Ingress,
    parts: &Parts,
    unread: Body,
    access: KeyAccess,
    observed: &mut Observed,
) -> Result<AdmittedRequest, ApiError> {
    if let Some(TrustedCaller { caller, .. }) = parts.extensions.get() {
        return admit_trusted(ingress, Arc::clone(caller), unread, access, observed).await;
    }
    let Credentials { key, signed } = Credentials::read(&parts.headers)?;
    let caller = ingress.keys.find(&key, Peer::of_request(ingress, parts).ip()).await?.ok_or_else(invalid_api_key)?;
    observed.trace.caller = Some(Arc::clone(&caller));
    if let Some(signed) = &signed {
        check_timestamp(signed)?;
    }
    let timeout = ingress.settings.http_body_timeout;
    let body = body::read(unread, &caller.product, &parts.headers, access.body_max_bytes, timeout).await?;
    if access.in_tenant {
        observed.trace.tenant.read_name(&body);
    }
    if let Some(signed) = &signed {
        check_signature(signed, &key, parts, &body)?;
    }
    let nonce = signed.as_ref().map(|signed| signed.nonce.clone());
    let tenant = check_nonce_and_rate(ingress, &caller, nonce, observed).await?;
    if let Some(signed) = &signed {
        check_claims(&caller, signed)?;
    }
    check_scope(&caller, access.scope)?;
    ingress.keys.note_use(&caller).await;
    Ok(AdmittedRequest { caller, body, tenant })
}

/// 401 for a key that is unknown, revoked or expired.
pub(crate) fn invalid_api_key() -> ApiError {
    ApiError::unauthorized("invalid_api_key").detail("the API key is not valid")
}

fn check_scope(caller: &Caller, scope: &str) -> Result<(), ApiError> {
    if caller.may(scope) { Ok(()) } else { Err(ApiError::forbidden(format!("missing_scope:{scope}"))) }
}

/// Admits a caller of the bus. It has no signature, nonce or rate limit; its scope is checked. Its body was received
/// as a whole, and counted then.
async fn admit_trusted(
    ingress: &Ingress,
    caller: Arc<Caller>,
    unread: Body,
    access: KeyAccess,
    observed: &mut Observed,
) -> Result<AdmittedRequest, ApiError> {
    observed.trace.caller = Some(Arc::clone(&caller));
    let most = access.body_max_bytes;
    let body = axum::body::to_bytes(unread, most).await.map_err(|_| body::too_large(most))?;
    if access.in_tenant {
        observed.trace.tenant.read_name(&body);
    }
    check_scope(&caller, access.scope)?;
    let wanted = AdmissionRequest::of(&caller, None, 0, observed.trace.tenant.name());
    let tenant = ingress.admissions.admit(wanted).await?.tenant;
    Ok(AdmittedRequest { caller, body, tenant })
}

fn check_timestamp(signed: &Signed) -> Result<(), ApiError> {
    let now = Utc::now();
    if signature::is_fresh(&signed.timestamp, now) {
        return Ok(());
    }
    let now = time(now);
    Err(ApiError::unauthorized("stale_timestamp")
        .detail(format!("X-Service-Timestamp must be RFC 3339 and within 5 minutes of server time, which is {now}")))
}

fn check_signature(signed: &Signed, key: &str, parts: &Parts, body: &[u8]) -> Result<(), ApiError> {
    let received = SignedParts {
        method: parts.method.as_str(),
        path: parts.uri.path(),
        timestamp: &signed.timestamp,
        nonce: &signed.nonce,
        body,
    };
    if received.is_signed_by(key, &signed.signature) {
        return Ok(());
    }
    Err(ApiError::unauthorized("invalid_signature")
        .detail("the signature does not match method, path, timestamp, nonce and body"))
}

/// Returns the tenant that the request names, if it is linked.
async fn check_nonce_and_rate(
    ingress: &Ingress,
    caller: &Caller,
    nonce: Option<String>,
    observed: &mut Observed,
) -> Result<Option<Uuid>, ApiError> {
    if nonce.as_ref().is_some_and(|nonce| !signature::is_nonce(nonce)) {
        return Err(ApiError::unauthorized("replayed_nonce").detail("a nonce is 1 to 128 visible ASCII characters"));
    }
    let limit = ingress.settings.rate_limit_per_minute;
    let wanted = AdmissionRequest::of(caller, nonce, limit, observed.trace.tenant.name());
    let admission = ingress.admissions.admit(wanted).await?;
    observed.rate = admission.rate;
    if !admission.nonce_is_fresh {
        return Err(ApiError::unauthorized("replayed_nonce").detail("the nonce was used before"));
    }
    check_rate(admission.rate)?;
    Ok(admission.tenant)
}

/// Counts a call that has no credentials, such as by a link, against the rate limit of the key that allowed it.
///
/// # Errors
/// 429 above the limit, 503 when Postgres is away.
pub(crate) async fn count_call(ingress: &Ingress, key_id: Uuid, rate_key: Uuid) -> Result<(), ApiError> {
    let limit = ingress.settings.rate_limit_per_minute;
    let wanted = AdmissionRequest { key_id, rate_key, nonce: None, limit, named: None };
    check_rate(ingress.admissions.admit(wanted).await?.rate)
}

fn check_rate(rate: Option<RateState>) -> Result<(), ApiError> {
    match rate {
        Some(state) if state.is_exceeded() => {
            Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded")
                .retry_after(u64::from(state.resets_in)))
        }
        _ => Ok(()),
    }
}

/// The headers may not claim another product or environment than the key's.
fn check_claims(caller: &Caller, signed: &Signed) -> Result<(), ApiError> {
    if signed.product != caller.product {
        return Err(ApiError::forbidden("product_mismatch").detail("the API key belongs to another product"));
    }
    if signed.environment != caller.environment.as_str() {
        return Err(ApiError::forbidden("environment_mismatch").detail("the API key belongs to another environment"));
    }
    Ok(())
}
