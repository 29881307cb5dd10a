//! The contract as OpenAPI 3.1, made from the routes themselves: `schemas/openapi.json`, `GET /openapi.json` and `GET /docs`.
//!
//! **How a route is documented.** Every route is registered once, through [`Routes`](crate::pipeline::Routes), with its
//! [`Doc`](crate::pipeline::Doc); without one it does not compile:
//!
//! ```ignore
//! Routes::new().get(
//!     "/v1/fields",
//!     read_page("fields:read", list),
//!     Doc::new("listFields", "List contact fields", "Newest first.").page::<FieldView>("A page of fields"),
//! )
//! .post(
//!     "/v1/fields",
//!     write("fields:write", create),
//!     Doc::new("createField", "Define a contact field", "Key and type are for good.")
//!         .example(json!({"key": "plan", "label": "Plan", "type": "string"}))
//!         .answer::<FieldCreated>(201, "Defined")
//!         .leads_to("field_id", &["getField"])
//!         .refuses(409, &["field_already_exists"]),
//! )
//! ```
//!
//! - What a route reads is known from its handler. Answers are the types that the handler answers with
//!   (`ApiReply::created(&FieldCreated { … })`, which adds `ok: true`). All of them derive `schemars::JsonSchema`; doc comments become
//!   descriptions, and each type is a component under its name, so a name stands once in the crate. Examples of answers are made from
//!   the schemas; the example of a body stands in the `Doc`, and a test sends it.
//! - A list is registered with `read_page`, answered by `ApiReply::page`, and its rows are a
//!   [`Resource`](crate::pipeline::page::Resource); so is what `ApiReply::single` answers.
//! - A body type has `#[serde(deny_unknown_fields)]`. An `Option` or a [`Patch`](crate::pipeline::Patch) may be left out or null; a field with
//!   `#[serde(default)]` may be left out, and with `or_default` be null. Limits come from the constants the checks use: `#[schemars(length(max = NOTE_MAX))]`,
//!   `#[schemars(extend("enum" = STATUSES))]`, and `#[schemars(with = "Name<NAME_MAX>")]` with the kinds of text in `types`, which also
//!   makes an `Option` that the handler requires a field that must be there.
//! - Describe only what is the route's own: an example of its body, its answers, and the error codes of its handler
//!   (`.refuses(404, &["field_not_found"])`). Credentials, `product_tenant_id`, `engine_tenant_id`, `Idempotency-Key`, headers and
//!   the refusals of the pipeline (400, 401, 403, 404 `tenant_not_found`, 408, 409, 413, 415, 422, 429, 500, 503) are added here.
//! - After a change: `UPDATE=1 cargo test -p ingress --test contract` writes `schemas/openapi.json`. Every answer that a test of
//!   the ingress receives is checked against the document, so a status, a code or a field that is missing in it fails a test.

mod document;
mod examples;
mod shared;
mod tags;

use serde_json::Value;

pub use document::document;
pub(crate) use examples::parameter_example;

/// The version of the interface.
pub const VERSION: &str = "1.0.0";

/// A value's place in the document.
pub(crate) fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str().and_then(|path| document.pointer(path.trim_start_matches('#'))) {
        Some(found) => found,
        None => value,
    }
}
