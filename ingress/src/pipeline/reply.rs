//! What a handler answers.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use uuid::Uuid;

use super::error::ApiError;

/// A success.
#[derive(Debug, Clone)]
pub struct Reply {
    pub(super) status: StatusCode,
    pub(super) body: Vec<u8>,
    /// Set: the answer waits for this, after the commit.
    pub(super) later: Option<Uuid>,
    /// Its body is kept sealed for repeats.
    pub(super) has_secret: bool,
}

impl Reply {
    /// With this status and this answer, to which `ok: true` is added.
    ///
    /// # Errors
    /// 500 for an answer that does not serialise: never for our types.
    pub fn new(status: StatusCode, answer: &impl Serialize) -> Result<Self, ApiError> {
        Self::untyped(status, &Success { ok: true, answer })
    }

    /// 200
    ///
    /// # Errors
    /// As [`Reply::new`].
    pub fn ok(answer: &impl Serialize) -> Result<Self, ApiError> {
        Self::new(StatusCode::OK, answer)
    }

    /// With this status and body; the body's `ok: true` is the handler's to write.
    ///
    /// # Errors
    /// 500 for a body that does not serialise: never for our types.
    pub fn untyped(status: StatusCode, body: &impl Serialize) -> Result<Self, ApiError> {
        let body = serde_json::to_vec(body).map_err(|error| ApiError::unexpected(&error))?;
        Ok(Self { status, body, later: None, has_secret: false })
    }

    /// "Committed; now wait": what is answered is the outcome of `reference`. For routes made with [`super::write_and_wait`].
    #[must_use]
    pub fn later(reference: Uuid) -> Self {
        Self { status: StatusCode::ACCEPTED, body: Vec::new(), later: Some(reference), has_secret: false }
    }

    /// Its body, as it is sent.
    pub(crate) fn into_body(self) -> Vec<u8> {
        self.body
    }

    /// The same, with a secret in it: what is kept of it for an idempotent repeat is encrypted.
    #[must_use]
    pub fn with_secret(self) -> Self {
        Self { has_secret: true, ..self }
    }

    /// 201
    ///
    /// # Errors
    /// As [`Reply::new`].
    pub fn created(answer: &impl Serialize) -> Result<Self, ApiError> {
        Self::new(StatusCode::CREATED, answer)
    }

    /// 202
    ///
    /// # Errors
    /// As [`Reply::new`].
    pub fn accepted(answer: &impl Serialize) -> Result<Self, ApiError> {
        Self::new(StatusCode::ACCEPTED, answer)
    }
}

/// What every success says, and the answer.
#[derive(Serialize)]
struct Success<'a, T> {
    ok: bool,
    #[serde(flatten)]
    answer: &'a T,
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        (self.status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], self.body).into_response()
    }
}
