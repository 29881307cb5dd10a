//! The contract as OpenAPI 3.1, made from the routes themselves: `schemas/openapi.json`, `GET /openapi.json` and `GET /docs`.
//!
//! **How a route is documented.** Every route is registered once, through [`Routes`](crate::pipeline::Routes), with a function that
//! answers its [`Doc`]; without one it does not compile. The functions stand in `doc.rs` beside the handlers:
//!
//! ```ignore
//! Routes::new()
//!     .get("/v1/fields", read("fields:read", list), doc::list)
//!     .post("/v1/fields", write("fields:write", create), doc::create)
//!
//! pub(super) fn create() -> Doc {
//!     Doc::new("createField", "Define a contact field", "Key and type are for good.")
//!         .body::<CreateField>(json!({"key": "plan", "label": "Plan", "type": "string"}))
//!         .answer::<FieldCreated>(201, "Defined", json!({"field_id": ID, "key": "plan", "created_at": AT}))
//!         .leads_to("field_id", &["getField"])
//!         .refuses(409, &["field_already_exists"])
//! }
//! ```
//!
//! - Bodies, queries and answers are the types that the handler reads and answers with (`Reply::ok(&FieldAnswer { field })`, which
//!   adds `ok: true`). They derive `schemars::JsonSchema`; doc comments become descriptions, and each type is a component under its
//!   name, so a name stands once in the crate.
//! - A body type has `#[serde(deny_unknown_fields)]`. An `Option` or a [`Patch`](crate::pipeline::Patch) may be left out or null; a field with
//!   `#[serde(default)]` may be left out. Limits come from the constants the checks use: `#[schemars(length(max = NOTE_MAX))]`,
//!   `#[schemars(extend("enum" = STATUSES))]`, and `#[schemars(with = "Name<NAME_MAX>")]` with the kinds of text in `types`, which also
//!   makes an `Option` that the handler requires a field that must be there.
//! - Say only what is the route's own: its parameters, body, answers with an example, and the codes its act refuses with
//!   (`.refuses(404, &["field_not_found"])`). Credentials, `product_tenant_id`, `engine_tenant_id`, `Idempotency-Key`, headers and
//!   the refusals of the road (400, 401, 403, 404 `tenant_not_found`, 408, 409, 413, 415, 422, 429, 500, 503) are added here.
//! - After a change: `UPDATE=1 cargo test -p ingress --test contract` writes `schemas/openapi.json`. Every answer that a test of
//!   the ingress receives is checked against the document, so a status, a code or a field that is missing in it fails a test.

mod document;
mod page;
mod tags;

use std::sync::{Arc, LazyLock};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

pub use document::document;

use crate::{
    documents::asyncapi,
    pipeline::{Doc, Operation, Routes, open},
    routes,
    state::Ingress,
};

/// The interface version of the specification.
pub const VERSION: &str = "1.0.0";

/// Every operation there is.
#[must_use]
pub fn operations() -> Vec<Operation> {
    routes::all().operations().to_vec()
}

/// The document as it is written and served: pretty, with a line break at the end.
#[must_use]
pub fn text() -> String {
    schemas::catalog::printed(&document(&operations()))
}

/// What is served, made once.
struct Served {
    json: Bytes,
    json_tag: HeaderValue,
    bus: Bytes,
    bus_tag: HeaderValue,
    page: Bytes,
    page_tag: HeaderValue,
    policy: HeaderValue,
}

static SERVED: LazyLock<Served> = LazyLock::new(|| {
    let document = document(&operations());
    let (json, page) = (Bytes::from(schemas::catalog::printed(&document)), Bytes::from(page::html()));
    let bus = Bytes::from(asyncapi::text());
    Served {
        json_tag: tag(&json),
        bus_tag: tag(&bus),
        page_tag: tag(&page),
        json,
        bus,
        page,
        policy: HeaderValue::try_from(page::policy()).unwrap_or(HeaderValue::from_static("default-src 'none'")),
    }
});

fn tag(bytes: &[u8]) -> HeaderValue {
    let digest = hex::encode(Sha256::digest(bytes));
    HeaderValue::try_from(format!("\"{}\"", &digest[..32])).unwrap_or(HeaderValue::from_static("\"0\""))
}

/// The routes of the contract itself.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .get("/openapi.json", open(show_json), doc_json)
        .get("/asyncapi.json", open(show_bus), doc_bus)
        .get("/docs", open(show_page), doc_page)
        .get("/docs/scalar.js", open(show_script), doc_script)
}

fn doc_json() -> Doc {
    Doc::new("getOpenApi", "Get this document", "With an `ETag`; give it back in `If-None-Match`.")
        .plain_answer::<Map<String, Value>>(200, "The document", json!({"openapi": "3.1.0"}))
        .empty(304, "It has not changed")
}

fn doc_bus() -> Doc {
    Doc::new("getAsyncApi", "Get the contract of the bus", "AsyncAPI 3.0, for systems that speak NATS. With an `ETag`.")
        .plain_answer::<Map<String, Value>>(200, "The document", json!({"asyncapi": "3.0.0"}))
        .empty(304, "It has not changed")
}

fn doc_page() -> Doc {
    Doc::new(
        "getDocs",
        "Read this document in a viewer",
        "A page that loads nothing from elsewhere, from which requests can be tried.",
    )
    .other(200, "The page", "text/html")
    .empty(304, "It has not changed")
}

fn doc_script() -> Doc {
    Doc::new("getDocsScript", "Load the viewer's script", "What the page of this document runs. With an `ETag`.")
        .other(200, "The script", "text/javascript")
        .empty(304, "It has not changed")
}

async fn show_json(State(_): State<Arc<Ingress>>, headers: HeaderMap) -> Response {
    let served = &*SERVED;
    conditional(&headers, &served.json_tag, "application/json", &served.json)
}

async fn show_bus(State(_): State<Arc<Ingress>>, headers: HeaderMap) -> Response {
    let served = &*SERVED;
    conditional(&headers, &served.bus_tag, "application/json", &served.bus)
}

async fn show_script(headers: HeaderMap) -> Response {
    static TAG: LazyLock<HeaderValue> = LazyLock::new(|| tag(&page::SCRIPT));
    conditional(&headers, &TAG, "text/javascript; charset=utf-8", &page::SCRIPT)
}

async fn show_page(State(_): State<Arc<Ingress>>, headers: HeaderMap) -> Response {
    let served = &*SERVED;
    let mut response = conditional(&headers, &served.page_tag, "text/html; charset=utf-8", &served.page);
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, served.policy.clone());
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn conditional(headers: &HeaderMap, tag: &HeaderValue, content_type: &'static str, body: &Bytes) -> Response {
    let fixed = [(header::ETAG, tag.clone()), (header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))];
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok()).is_some_and(|tags| {
        tags.split(',').map(|given| given.trim().trim_start_matches("W/")).any(|given| given == "*" || tag == given)
    });
    if known {
        return (StatusCode::NOT_MODIFIED, fixed).into_response();
    }
    (StatusCode::OK, fixed, [(header::CONTENT_TYPE, HeaderValue::from_static(content_type))], body.clone())
        .into_response()
}

/// A value's place in the document, for tests and the page.
pub(crate) fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str().and_then(|path| document.pointer(path.trim_start_matches('#'))) {
        Some(found) => found,
        None => value,
    }
}
