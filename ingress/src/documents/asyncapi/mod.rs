//! The contract of the bus: `schemas/asyncapi.json` (AsyncAPI 3.0), made from the types and from the routes themselves, and one JSON
//! Schema for each message that is kept in a stream or told, in `schemas/json`. Calls carry the bodies of HTTP: the committed document
//! refers to their schemas in `openapi.json` beside it, and what is served or printed stands alone.
//!
//! What the engine says among its stages and what it tells is described in `schemas::catalog`, from the types. What callers may ask
//! is what HTTP takes, so it is made from the OpenAPI document: the same bodies, with what a path names put into them.
//!
//! After a change: `UPDATE=1 cargo test -p ingress --test contract` writes the files, unless the change would break somebody who
//! relies on what was there (`ingress/tests/contract/compat.rs`). Within `v1` everything is only ever added.

mod calls;
mod document;
mod requests;
mod standalone;

use std::collections::BTreeMap;

use schemas::catalog::{self, Described};
use serde_json::Value;

use self::calls::Call;
use crate::pipeline::Operation;

/// The dialect of every schema.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// What the names of requests and answers of calls begin with.
const CALLS: &str = "mail.v1.api.";

/// The AsyncAPI document, and what it was made from.
#[derive(Debug)]
pub struct Asyncapi {
    /// Every message there is.
    pub messages: Vec<Described>,
    /// The document.
    pub document: Value,
    calls: Vec<Call>,
}

impl Asyncapi {
    /// Makes it from the operations and their OpenAPI document.
    pub(super) fn new(operations: &[Operation], http: &Value) -> Self {
        let calls = calls::all(operations, http);
        let mut messages = catalog::all();
        messages.extend(requests::all(operations, http));
        messages.extend(calls.iter().flat_map(|call| [call.request.clone(), call.answer.clone()]));
        messages.push(calls::refusal(http));
        let document = document::make(&messages, &calls);
        Self { messages, document, calls }
    }

    /// A call over the bus, by its operation.
    pub(crate) fn call(&self, operation: &str) -> Option<&Call> {
        self.calls.iter().find(|call| call.operation == operation)
    }

    /// The document as it is written and printed: pretty, with a line break at the end.
    #[must_use]
    pub fn text(&self) -> String {
        catalog::printed(&self.document)
    }

    /// The document as it is committed: what the OpenAPI document beside it has, too, it refers to.
    #[must_use]
    pub fn committed(&self, http: &Value) -> String {
        let schemas = &http["components"]["schemas"];
        catalog::printed(&standalone::leaning_on(self.document.clone(), "openapi.json", schemas))
    }

    /// The JSON Schemas that are committed, by the names of their files: those of every message but the calls, which are HTTP's.
    #[must_use]
    pub fn files(&self) -> BTreeMap<String, String> {
        let own = self.messages.iter().filter(|message| !message.name.starts_with(CALLS));
        own.map(|message| (format!("{}.json", message.name), catalog::printed(&standing(message)))).collect()
    }
}

/// A message's schema as its file has it: with a name, a line about it, and examples.
#[must_use]
pub fn standing(message: &Described) -> Value {
    let mut schema = message.schema.clone();
    schema["$schema"] = DIALECT.into();
    schema["$id"] = format!("urn:postrider:{}", message.name).into();
    schema["title"] = message.title.as_str().into();
    schema["description"] = message.summary.as_str().into();
    schema["examples"] = message.examples.iter().map(|(_, example)| example.clone()).collect();
    catalog::sorted(schema)
}
