//! The successful answer of a handler.

use std::{
    fmt, io,
    sync::{Mutex, PoisonError},
};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures::{
    Stream, StreamExt,
    stream::{self, BoxStream},
};
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde::Serialize;
use uuid::Uuid;

use super::{
    error::ApiError,
    page::{ListPage, Resource, SingleResource},
};

/// A successful answer.
#[must_use]
#[derive(Debug)]
pub struct ApiReply {
    pub(super) status: StatusCode,
    pub(crate) body: Vec<u8>,
    /// If set, the answer waits for the outcome of this reference, after the commit.
    pub(super) later: Option<Uuid>,
    /// True if the body is stored encrypted for repeats.
    pub(super) has_secret: bool,
    content_type: &'static str,
    rest: BodyRest,
}

/// Parts of a body that are made while it is sent.
type BodyParts = BoxStream<'static, io::Result<Bytes>>;

/// What follows the beginning of a body; nothing for most answers. The lock makes an answer `Sync`.
#[derive(Default)]
struct BodyRest(Mutex<Option<BodyParts>>);

impl fmt::Debug for BodyRest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyRest").finish_non_exhaustive()
    }
}

const JSON: &str = "application/json";

/// The headers of every answer to a recipient: no caching, no indexing, no referrer.
pub(crate) const QUIET: [(HeaderName, HeaderValue); 4] = [
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store, max-age=0")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (HeaderName::from_static("x-robots-tag"), HeaderValue::from_static("noindex, nofollow")),
];

impl ApiReply {
    /// An answer with this status and `ok: true`.
    pub fn new(status: StatusCode, answer: &impl Serialize) -> Result<Self, ApiError> {
        Self::untyped(status, &Success { ok: true, answer })
    }

    /// 200 with `ok: true`.
    pub fn ok(answer: &impl Serialize) -> Result<Self, ApiError> {
        Self::new(StatusCode::OK, answer)
    }

    /// 200 with one resource.
    pub fn single(resource: impl Resource) -> Result<Self, ApiError> {
        Self::ok(&SingleResource(resource))
    }

    /// 200 with a page of resources: the rows that [`ListPage::fetch`] asked for.
    pub fn page(page: ListPage, rows: Vec<impl Resource>) -> Result<Self, ApiError> {
        Self::ok(&page.answer(rows))
    }

    /// An answer with this status and body. The handler writes `ok` itself.
    pub fn untyped(status: StatusCode, body: &impl Serialize) -> Result<Self, ApiError> {
        let body = serde_json::to_vec(body).map_err(|error| ApiError::unexpected(&error))?;
        Ok(Self::of(status, JSON, body))
    }

    fn of(status: StatusCode, content_type: &'static str, body: Vec<u8>) -> Self {
        Self { status, body, later: None, has_secret: false, content_type, rest: BodyRest::default() }
    }

    /// An answer of another type: its beginning, and the rest, which is made while it is sent. Only for reads.
    pub(crate) fn stream(
        status: StatusCode,
        content_type: &'static str,
        first: Vec<u8>,
        rest: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Self {
        Self { rest: BodyRest(Mutex::new(Some(rest.boxed()))), ..Self::of(status, content_type, first) }
    }

    /// Answers the outcome of `reference`, after the commit, with 200 if all goes well. For routes made with [`super::write_and_wait`].
    pub fn later(reference: Uuid) -> Self {
        Self { later: Some(reference), ..Self::of(StatusCode::OK, JSON, Vec::new()) }
    }

    /// Marks an answer with a secret: it is stored encrypted for a repeat.
    pub fn with_secret(self) -> Self {
        Self { has_secret: true, ..self }
    }

    /// 201 with `ok: true`.
    pub fn created(answer: &impl Serialize) -> Result<Self, ApiError> {
        Self::new(StatusCode::CREATED, answer)
    }

    /// 202 with `ok: true`.
    pub fn accepted(answer: &impl Serialize) -> Result<Self, ApiError> {
        Self::new(StatusCode::ACCEPTED, answer)
    }
}

/// Makes an answer that has the id of an object, and the one status that it has now. `Answer::reply(id)` answers it.
macro_rules! status_answer {
    ($vis:vis $answer:ident, $id:ident, $status:expr) => {
        #[derive(Debug, serde::Serialize, schemars::JsonSchema)]
        $vis struct $answer {
            $id: uuid::Uuid,
            #[schemars(extend("const" = $status))]
            status: &'static str,
        }

        impl $answer {
            $vis fn reply($id: uuid::Uuid) -> Result<$crate::pipeline::ApiReply, $crate::pipeline::error::ApiError> {
                $crate::pipeline::ApiReply::ok(&Self { $id, status: $status })
            }
        }
    };
}
pub(crate) use status_answer;

/// `ok: true` and the fields of the answer.
#[derive(Serialize)]
struct Success<'a, T> {
    ok: bool,
    #[serde(flatten)]
    answer: &'a T,
}

impl IntoResponse for ApiReply {
    fn into_response(self) -> Response {
        let body = match self.rest.0.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(rest) => Body::from_stream(stream::iter([Ok(Bytes::from(self.body))]).chain(rest)),
            None => Body::from(self.body),
        };
        (self.status, [(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type))], body).into_response()
    }
}
