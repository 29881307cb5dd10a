//! Authenticates and authorises a request.

pub mod admission;
pub mod credentials;
pub mod keys;
pub mod signature;
pub mod sweep;

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use chrono::{SecondsFormat, Utc};
use http::{StatusCode, request::Parts};
use uuid::Uuid;

pub use admission::{Admissions, RateState};
pub use keys::{ApiKeys, Caller};

use self::{
    admission::AdmissionRequest,
    credentials::{Credentials, Signed},
    signature::SignedParts,
};
use crate::{
    pipeline::{body, error::ApiError, observed::Observed, peer::Peer},
    state::Ingress,
};

/// A request whose caller is authenticated and has the scope.
#[derive(Debug)]
pub struct AdmittedRequest {
    /// The caller.
    pub caller: Arc<Caller>,
    /// The body, exactly as received.
    pub body: Bytes,
    /// The tenant that the request names, if it is linked. It is not checked yet that the key may use it.
    pub tenant: Option<Uuid>,
}

/// A caller that the permissions of the bus have authenticated. It is an extension of a request made in this process: no request over
/// HTTP can have one.
#[derive(Debug, Clone)]
pub struct TrustedCaller {
    /// The caller.
    pub caller: Arc<Caller>,
    /// Run the handler, answer, and roll back.
    pub dry_run: bool,
    /// Answer at the commit: the caller does not wait for an outcome after it.
    pub skips_outcome: bool,
}

/// The conditions under which a request is admitted.
#[derive(Debug, Clone, Copy)]
pub struct AdmissionTerms {
    /// The scope the key must have.
    pub scope: &'static str,
    /// The longest body, in bytes.
    pub body_max_bytes: usize,
    /// True if the request belongs to one tenant. The tenant is looked up along with the rest, under the name that the query has, or a
    /// body that is not too long to be searched.
    pub in_tenant: bool,
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
    terms: AdmissionTerms,
    observed: &mut Observed,
) -> Result<AdmittedRequest, ApiError> {
    if let Some(TrustedCaller { caller, .. }) = parts.extensions.get() {
        return admit_trusted(ingress, Arc::clone(caller), unread, terms, observed).await;
    }
    let credentials = Credentials::read(&parts.headers)?;
    let caller = ingress
        .keys
        .find(credentials.key(), Peer::of_request(ingress, parts).ip())
        .await?
        .ok_or_else(|| ApiError::unauthorized("invalid_api_key").detail("the API key is not valid"))?;
    observed.trace.caller = Some(Arc::clone(&caller));
    if let Credentials::Signed(signed) = &credentials {
        check_timestamp(signed)?;
    }
    let timeout = ingress.settings.http_body_timeout;
    let body = body::read(unread, &caller.product, &parts.headers, terms.body_max_bytes, timeout).await?;
    if terms.in_tenant {
        observed.trace.tenant.read_name(&body);
    }
    let received = ReceivedRequest { caller: &caller, credentials: &credentials, parts, body: &body };
    let tenant = check_received(ingress, received, terms, observed).await?;
    ingress.keys.note_use(&caller).await;
    Ok(AdmittedRequest { caller, body, tenant })
}

/// A request whose key is known.
#[derive(Clone, Copy)]
struct ReceivedRequest<'a> {
    caller: &'a Caller,
    credentials: &'a Credentials,
    parts: &'a Parts,
    body: &'a [u8],
}

/// Checks signature, nonce, rate limit, claims and scope. Returns the tenant that the request names, if it is linked.
async fn check_received(
    ingress: &Ingress,
    ReceivedRequest { caller, credentials, parts, body }: ReceivedRequest<'_>,
    terms: AdmissionTerms,
    observed: &mut Observed,
) -> Result<Option<Uuid>, ApiError> {
    if let Credentials::Signed(signed) = credentials {
        check_signature(signed, parts, body)?;
    }
    let tenant = check_nonce_and_rate(ingress, caller, credentials, observed).await?;
    if let Credentials::Signed(signed) = credentials {
        check_claims(caller, signed)?;
    }
    check_scope(caller, terms.scope)?;
    Ok(tenant)
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
    terms: AdmissionTerms,
    observed: &mut Observed,
) -> Result<AdmittedRequest, ApiError> {
    observed.trace.caller = Some(Arc::clone(&caller));
    let most = terms.body_max_bytes;
    let body = axum::body::to_bytes(unread, most).await.map_err(|_| body::too_large(most))?;
    if terms.in_tenant {
        observed.trace.tenant.read_name(&body);
    }
    check_scope(&caller, terms.scope)?;
    let wanted = AdmissionRequest::of(&caller, None, 0, observed.trace.tenant.name());
    let tenant = ingress.admissions.admit(wanted).await?.tenant;
    Ok(AdmittedRequest { caller, body, tenant })
}

fn check_timestamp(signed: &Signed) -> Result<(), ApiError> {
    let now = Utc::now();
    if signature::is_fresh(&signed.timestamp, now) {
        return Ok(());
    }
    let now = now.to_rfc3339_opts(SecondsFormat::Millis, true);
    Err(ApiError::unauthorized("stale_timestamp")
        .detail(format!("X-Service-Timestamp must be RFC 3339 and within 5 minutes of server time, which is {now}")))
}

fn check_signature(signed: &Signed, parts: &Parts, body: &[u8]) -> Result<(), ApiError> {
    let received = SignedParts {
        method: parts.method.as_str(),
        path: parts.uri.path(),
        timestamp: &signed.timestamp,
        nonce: &signed.nonce,
        body,
    };
    if received.is_signed_by(&signed.key, &signed.signature) {
        return Ok(());
    }
    Err(ApiError::unauthorized("invalid_signature")
        .detail("the signature does not match method, path, timestamp, nonce and body"))
}

/// Returns the tenant that the request names, if it is linked.
async fn check_nonce_and_rate(
    ingress: &Ingress,
    caller: &Caller,
    credentials: &Credentials,
    observed: &mut Observed,
) -> Result<Option<Uuid>, ApiError> {
    let nonce = match credentials {
        Credentials::Signed(signed) if !signature::is_nonce(&signed.nonce) => {
            return Err(ApiError::unauthorized("replayed_nonce").detail("a nonce is 1 to 128 visible ASCII characters"));
        }
        Credentials::Signed(signed) => Some(signed.nonce.clone()),
        Credentials::Bearer { .. } => None,
    };
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
