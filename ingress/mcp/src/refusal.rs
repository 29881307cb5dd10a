//! Everything the endpoint answers before a tool is asked, in the error shape of the API.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use runtime::Counter;
use serde_json::json;

use crate::{settings::Terms, token::SCOPE_READ};

/// What a caller should wait, in seconds, when Postgres or the issuer is away.
const RETRY_UNAVAILABLE: u64 = 5;

/// Why a request is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AssistantRefusal {
    /// No bearer token.
    NoToken,
    /// A token that is not one of the issuer's for us, now.
    BadToken,
    /// The token was not made for reading.
    Scope,
    /// A client outside the pilot.
    Client,
    /// No approval of this user with this client, or an expired one.
    NotApproved,
    /// A web page of another origin.
    Origin,
    /// Too many requests; seconds to wait.
    Rate(u64),
    /// More bytes than any call needs.
    BodyTooLarge,
    /// The body broke off.
    IncompleteBody,
    /// The body did not come in time.
    SlowBody,
    /// The body does not say that it is JSON.
    MediaType,
    /// The body is not JSON.
    Json,
    /// Postgres or the issuer's keys are away.
    Unavailable,
    /// Our fault.
    Internal,
}

impl AssistantRefusal {
    fn parts(self) -> (StatusCode, &'static str) {
        match self {
            Self::NoToken => (StatusCode::UNAUTHORIZED, "missing_credentials"),
            Self::BadToken => (StatusCode::UNAUTHORIZED, "invalid_token"),
            Self::Scope => (StatusCode::FORBIDDEN, "missing_scope:mail:read"),
            Self::Client => (StatusCode::FORBIDDEN, "client_not_allowed"),
            Self::NotApproved => (StatusCode::FORBIDDEN, "not_approved"),
            Self::Origin => (StatusCode::FORBIDDEN, "origin_not_allowed"),
            Self::Rate(_) => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded"),
            Self::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            Self::IncompleteBody => (StatusCode::BAD_REQUEST, "incomplete_body"),
            Self::SlowBody => (StatusCode::REQUEST_TIMEOUT, "request_timeout"),
            Self::MediaType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type"),
            Self::Json => (StatusCode::BAD_REQUEST, "invalid_json"),
            Self::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal_error"),
        }
    }

    /// The answer. A 401 names the metadata URL (RFC 9728 §5.1), a missing scope the scope (RFC 6750 §3).
    pub(crate) fn answer(self, terms: &Terms) -> Response {
        let (status, code) = self.parts();
        Counter::AssistantRefusalsTotal.add(1, [("reason", code)]);
        let mut response = shaped(status, code);
        let metadata = terms.metadata_url();
        let challenge = match self {
            Self::NoToken => Some(format!("Bearer resource_metadata=\"{metadata}\"")),
            Self::BadToken => Some(format!("Bearer error=\"invalid_token\", resource_metadata=\"{metadata}\"")),
            Self::Scope => Some(format!(
                "Bearer error=\"insufficient_scope\", scope=\"{SCOPE_READ}\", resource_metadata=\"{metadata}\""
            )),
            _ => None,
        };
        if let Some(value) = challenge.and_then(|text| HeaderValue::try_from(text).ok()) {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, value);
        }
        let wait = match self {
            Self::Rate(seconds) => Some(seconds),
            Self::Unavailable => Some(RETRY_UNAVAILABLE),
            _ => None,
        };
        if let Some(seconds) = wait {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<sqlx::Error> for AssistantRefusal {
    fn from(error: sqlx::Error) -> Self {
        if runtime::db::is_transient(&error) {
            tracing::warn!("database unavailable to the assistant endpoint");
            return Self::Unavailable;
        }
        tracing::error!(error = runtime::db::describe(&error), "database refused the assistant endpoint");
        Self::Internal
    }
}

pub(crate) fn shaped(status: StatusCode, code: &str) -> Response {
    let body = json!({"ok": false, "error": code}).to_string();
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}
