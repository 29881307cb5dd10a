//! The routes of the contracts themselves: `GET /openapi.json`, `GET /asyncapi.json` and `GET /docs`.

use std::sync::OnceLock;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{Contracts, page};
use crate::pipeline::{Doc, Routes, open};

/// A public file, made once.
struct ServedFile {
    content_type: &'static str,
    body: Bytes,
    tag: HeaderValue,
}

impl ServedFile {
    fn new(content_type: &'static str, body: impl Into<Bytes>) -> Self {
        let body = body.into();
        let digest = hex::encode(Sha256::digest(&body));
        let tag = HeaderValue::try_from(format!("\"{}\"", &digest[..32]));
        Self { content_type, body, tag: tag.unwrap_or(HeaderValue::from_static("\"0\"")) }
    }

    /// Answers the file, or 304 if the caller has it.
    fn answer(&self, headers: &HeaderMap) -> Response {
        let fixed = [(header::ETAG, self.tag.clone()), (header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))];
        let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok()).is_some_and(|tags| {
            let mut given = tags.split(',').map(|given| given.trim().trim_start_matches("W/"));
            given.any(|given| given == "*" || self.tag == given)
        });
        if known {
            return (StatusCode::NOT_MODIFIED, fixed).into_response();
        }
        let content_type = [(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type))];
        (StatusCode::OK, fixed, content_type, self.body.clone()).into_response()
    }
}

/// Both contracts, as they are served.
pub(crate) struct ServedContracts {
    openapi: ServedFile,
    asyncapi: ServedFile,
}

impl ServedContracts {
    /// Of what they are made from, which takes many times their size, nothing is kept.
    pub(crate) fn new(contracts: Contracts) -> Self {
        let json = |text: String| ServedFile::new("application/json", text);
        Self { asyncapi: json(contracts.asyncapi.text()), openapi: json(contracts.openapi) }
    }

    /// The contract of the bus.
    pub(crate) fn asyncapi(&self) -> Bytes {
        self.asyncapi.body.clone()
    }
}

/// The routes. The contracts describe these routes, too, so they are asked for at the first request.
pub(crate) fn routes(served: fn() -> &'static ServedContracts) -> Routes {
    let openapi = async move |headers: HeaderMap| served().openapi.answer(&headers);
    let asyncapi = async move |headers: HeaderMap| served().asyncapi.answer(&headers);
    Routes::new()
        .get(
            "/openapi.json",
            open(openapi),
            Doc::new("getOpenApi", "Get this document", "With an `ETag`; give it back in `If-None-Match`.")
                .plain_answer::<Map<String, Value>>(200, "The document")
                .empty(304, "It has not changed"),
        )
        .get(
            "/asyncapi.json",
            open(asyncapi),
            Doc::new(
                "getAsyncApi",
                "Get the contract of the bus",
                "AsyncAPI 3.0, for systems that speak NATS. With an `ETag`.",
            )
            .plain_answer::<Map<String, Value>>(200, "The document")
            .empty(304, "It has not changed"),
        )
        .get(
            "/docs",
            open(show_page),
            Doc::new(
                "getDocs",
                "Read this document in a viewer",
                "A page that loads nothing from elsewhere, from which requests can be tried.",
            )
            .other(200, "The page", "text/html")
            .empty(304, "It has not changed"),
        )
        .get(
            "/docs/scalar.js",
            open(show_script),
            Doc::new(
                "getDocsScript",
                "Load the viewer's script",
                "What the page of this document runs. With an `ETag`.",
            )
            .other(200, "The script", "text/javascript")
            .empty(304, "It has not changed"),
        )
}

async fn show_script(headers: HeaderMap) -> Response {
    static FILE: OnceLock<ServedFile> = OnceLock::new();
    FILE.get_or_init(|| ServedFile::new("text/javascript; charset=utf-8", page::script())).answer(&headers)
}

async fn show_page(headers: HeaderMap) -> Response {
    static FILE: OnceLock<ServedFile> = OnceLock::new();
    static POLICY: OnceLock<HeaderValue> = OnceLock::new();
    let mut response = FILE.get_or_init(|| ServedFile::new("text/html; charset=utf-8", page::html())).answer(&headers);
    let policy = POLICY.get_or_init(|| {
        HeaderValue::try_from(page::policy()).unwrap_or(HeaderValue::from_static("default-src 'none'"))
    });
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy.clone());
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
