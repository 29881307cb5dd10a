//! What is known of a request once it is answered: its caller, its tenant, its rate limit.

use std::sync::{Arc, OnceLock};

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue};
use uuid::Uuid;

use super::{
    auth::{admission::RateState, keys::Caller},
    error::ApiError,
    request_log::LoggedTenant,
    tenant,
};

/// Longest body that is searched for its tenant before it is parsed.
const SEARCHED_BYTES_MAX: usize = 64 * 1024;

/// Caller and tenant of a request, for the access log and the request log.
#[derive(Debug, Clone, Default)]
pub struct RequestTrace {
    /// The caller, once its key is known.
    pub caller: Option<Arc<Caller>>,
    pub tenant: Arc<SeenTenant>,
}

/// The tenant of a request. It is filled in while the request is handled, so that a call that takes too long has one.
#[derive(Debug, Default)]
pub struct SeenTenant {
    id: OnceLock<Uuid>,
    name: OnceLock<String>,
}

impl SeenTenant {
    /// Says under which name the caller asks for it.
    pub(super) fn set_name(&self, product_tenant_id: &str) {
        self.name.get_or_init(|| product_tenant_id.to_owned());
    }

    /// The name under which the caller asks for it, once it is read.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.get().map(String::as_str)
    }

    /// Reads its name in a body that is not parsed yet.
    pub(crate) fn read_name(&self, body: &[u8]) {
        if body.len() <= SEARCHED_BYTES_MAX
            && let Some(name) = tenant::named_in(body)
        {
            self.set_name(&name);
        }
    }

    /// Says which it is.
    pub(super) fn set_id(&self, tenant: Uuid) {
        self.id.get_or_init(|| tenant);
    }

    /// Which it is, if it was found.
    pub(super) fn id(&self) -> Option<Uuid> {
        self.id.get().copied()
    }

    /// The tenant whose log has the call; a key of one tenant calls for that one only.
    pub(crate) fn logged(&self, caller: &Caller) -> Option<LoggedTenant> {
        let id = self.id().or(caller.tenant_id).map(LoggedTenant::Id);
        id.or_else(|| self.name().map(str::to_owned).map(LoggedTenant::Name))
    }
}

/// Facts about the request for the answer's headers and the logs.
#[derive(Debug, Default)]
pub(super) struct Observed {
    pub rate: Option<RateState>,
    pub trace: RequestTrace,
}

impl Observed {
    /// The answer with its headers.
    pub fn finish(self, result: Result<Response, ApiError>) -> Response {
        let mut response = result.unwrap_or_else(IntoResponse::into_response);
        if let Some(rate) = self.rate {
            add_rate_headers(response.headers_mut(), rate);
        }
        response.extensions_mut().insert(self.trace);
        response
    }
}

fn add_rate_headers(headers: &mut HeaderMap, rate: RateState) {
    let now = u64::try_from(chrono::Utc::now().timestamp()).unwrap_or(0);
    let combined = format!("\"key\";r={};t={}", rate.remaining(), rate.resets_in);
    if let Ok(value) = HeaderValue::try_from(combined) {
        headers.insert("ratelimit", value);
    }
    headers.insert("x-ratelimit-limit", HeaderValue::from(rate.limit));
    headers.insert("x-ratelimit-remaining", HeaderValue::from(rate.remaining()));
    headers.insert("x-ratelimit-reset", HeaderValue::from(now + u64::from(rate.resets_in)));
}
