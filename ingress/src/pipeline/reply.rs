//! The successful answer of a handler.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use uuid::Uuid;

use super::{
    error::ApiError,
    page::{ListPage, Resource, SingleResource},
};

/// A successful answer.
#[derive(Debug, Clone)]
pub struct ApiReply {
    pub(super) status: StatusCode,
    pub(super) body: Vec<u8>,
    /// If set, the answer waits for the outcome of this reference, after the commit.
    pub(super) later: Option<Uuid>,
    /// True if the body is stored encrypted for repeats.
    pub(super) has_secret: bool,
}

impl ApiReply {
    /// An answer with this status and `ok: true`.
    ///
    /// # Errors
    /// 500 for an answer that does not serialise: never for our types.
    pub fn new(status: StatusCode, answer: &impl Serialize) -> Result<Self, ApiError> {
        Self::untyped(status, &Success { ok: true, answer })
    }

    /// 200 with `ok: true`.
    ///
    /// # Errors
    /// 500 for an answer that does not serialise: never for our types.
    pub fn ok(answer: &impl Serialize) -> Result<Self, ApiError> {
        Self::new(StatusCode::OK, answer)
    }

    /// 200 with one resource.
    ///
    /// # Errors
    /// 500 for an answer that does not serialise: never for our types.
    pub fn single(resource: impl Resource) -> Result<Self, ApiError> {
        Self::ok(&SingleResource(resource))
    }

    /// 200 with a page of resources: the rows that [`ListPage::fetch`] asked for.
    ///
    /// # Errors
    /// 500 for an answer that does not serialise: never for our types.
    pub fn page(page: ListPage, rows: Vec<impl Resource>) -> Result<Self, ApiError> {
        Self::ok(&page.answer(rows))
    }

    /// An answer with this status and body. The handler writes `ok` itself.
    ///
    /// # Errors
    /// 500 for a body that does not serialise: never for our types.
    pub fn untyped(status: StatusCode, body: &impl Serialize) -> Result<Self, ApiError> {
        let body = serde_json::to_vec(body).map_err(|error| ApiError::unexpected(&error))?;
        Ok(Self { status, body, later: None, has_secret: false })
    }

    /// Answers the outcome of `reference`, after the commit. For routes made with [`super::write_and_wait`].
    #[must_use]
    pub fn later(reference: Uuid) -> Self {
        Self { status: StatusCode::ACCEPTED, body: Vec::new(), later: Some(reference), has_secret: false }
    }

    /// The body as sent.
    pub(crate) fn into_body(self) -> Vec<u8> {
        self.body
    }

    /// Marks an answer with a secret: it is stored encrypted for a repeat.
    #[must_use]
    pub fn with_secret(self) -> Self {
        Self { has_secret: true, ..self }
    }

    /// 201 with `ok: true`.
    ///
    /// # Errors
    /// 500 for an answer that does not serialise: never for our types.
    pub fn created(answer: &impl Serialize) -> Result<Self, ApiError> {
        Self::new(StatusCode::CREATED, answer)
    }

    /// 202 with `ok: true`.
    ///
    /// # Errors
    /// 500 for an answer that does not serialise: never for our types.
    pub fn accepted(answer: &impl Serialize) -> Result<Self, ApiError> {
        Self::new(StatusCode::ACCEPTED, answer)
    }
}

/// `ok: true` and the fields of the answer.
#[derive(Serialize)]
struct Success<'a, T> {
    ok: bool,
    #[serde(flatten)]
    answer: &'a T,
}

impl IntoResponse for ApiReply {
    fn into_response(self) -> Response {
        (self.status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], self.body).into_response()
    }
}
