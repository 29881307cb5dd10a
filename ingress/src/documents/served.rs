//! The routes of the contracts themselves: `GET /openapi.json`, `GET /asyncapi.json`, and `GET /docs`, the document in Scalar's API
//! reference. The viewer is part of the program; the page loads nothing from elsewhere, and its policy would not let it.

use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::Contracts;
use crate::pipeline::{Doc, Routes, open};

/// Starts the viewer. What would call other hosts is off: fonts, the assistant, telemetry, the vendor's API clients.
const START: &str = "Scalar.createApiReference('#app',{url:'/openapi.json',withDefaultFonts:false,telemetry:false,\
agent:{disabled:true},mcp:{disabled:true},hideClientButton:true,showDeveloperTools:'never',persistAuth:false,\
authentication:{preferredSecurityScheme:'bearer'},defaultOpenFirstTag:false})";

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
    let script = async move |headers: HeaderMap| SCRIPT.answer(&headers);
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
            open(script),
            Doc::new(
                "getDocsScript",
                "Load the viewer's script",
                "What the page of this document runs. With an `ETag`.",
            )
            .other(200, "The script", "text/javascript")
            .empty(304, "It has not changed"),
        )
}

static SCRIPT: LazyLock<ServedFile> = LazyLock::new(|| {
    let script = scalar_api_reference::get_asset("scalar.js").unwrap_or_default();
    ServedFile::new("text/javascript; charset=utf-8", script)
});

/// An element for the viewer, and its start.
static PAGE: LazyLock<ServedFile> = LazyLock::new(|| {
    let html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>Postrider API</title></head><body><div id=\"app\"></div>\
         <noscript>This page needs JavaScript. The document itself is at <a href=\"/openapi.json\">openapi.json</a>.</noscript>\
         <script src=\"/docs/scalar.js\"></script><script>{START}</script></body></html>\n"
    );
    ServedFile::new("text/html; charset=utf-8", html)
});

/// The viewer's script, its start, and requests to this host. The viewer sets styles as it runs.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let digest = STANDARD.encode(Sha256::digest(START.as_bytes()));
    let policy = format!(
        "default-src 'none'; script-src 'self' 'sha256-{digest}'; style-src 'unsafe-inline'; img-src 'self' data:; font-src data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

async fn show_page(headers: HeaderMap) -> Response {
    let mut response = PAGE.answer(&headers);
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, POLICY.clone());
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
