//! The contract of the bus: `schemas/asyncapi.json` (AsyncAPI 3.0), made from the types and from the routes themselves, and one JSON
//! Schema for each message that is kept in a stream or published as an event, in `schemas/json`. Calls carry the bodies of HTTP. The
//! committed document says nothing that a file beside it says: it refers to those schemas and to `openapi.json`, and leaves the examples
//! there. The served and the printed document are self-contained.
//!
//! Messages between the stages and events are described in `schemas::catalog`, from the types. Requests of callers are those of HTTP, so
//! they are made from the OpenAPI document: the same bodies, with the path parameters added.
//!
//! After a change: `UPDATE=1 cargo test -p ingress --test contract` writes the files, unless the change would break a
//! reader of the old ones (`ingress/tests/contract/compat.rs`). Within `v1` everything is only ever added.

mod calls;
mod document;
mod references;

use std::collections::BTreeMap;

use schemas::catalog::{self, Described};
use serde_json::{Map, Value, json};

pub(crate) use self::calls::{answer_name, request_name};
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
}

impl Asyncapi {
    /// Makes it from the operations and their OpenAPI document.
    pub(super) fn new(operations: &[Operation], http: &Value) -> Self {
        let calls = calls::all(operations, http);
        let mut messages = catalog::all();
        messages.extend(calls::requests(operations, http));
        messages.extend(calls.iter().flat_map(|call| [call.request.clone(), call.answer.clone()]));
        messages.push(calls::refusal(http));
        let document = document::build_document(&messages, &calls);
        Self { messages, document }
    }

    /// The document as it is written and printed: pretty, with a line break at the end.
    #[must_use]
    pub fn text(&self) -> String {
        catalog::printed(&self.document)
    }

    /// The document as it is committed: what `files` and the OpenAPI document beside it have, too, it refers to.
    #[must_use]
    pub fn committed(&self, http: &Value) -> String {
        let mut document = self.document.clone();
        for message in self.own() {
            let name = &message.name;
            document["components"]["schemas"][name] = json!({"$ref": format!("json/{name}.json")});
        }
        for message in document["components"]["messages"].as_object_mut().into_iter().flat_map(Map::values_mut) {
            if let Some(message) = message.as_object_mut() {
                message.remove("examples");
            }
        }
        let document = references::without_unused_schemas(document);
        let shared = &http["components"]["schemas"];
        catalog::printed(&references::without_shared_schemas(document, "openapi.json", shared))
    }

    /// The messages with files of their own: every one but the calls, which are HTTP's.
    fn own(&self) -> impl Iterator<Item = &Described> {
        self.messages.iter().filter(|message| !message.name.starts_with(CALLS))
    }

    /// The JSON Schemas that are committed, by the names of their files.
    #[must_use]
    pub fn files(&self) -> BTreeMap<String, String> {
        self.own().map(|message| (format!("{}.json", message.name), catalog::printed(&schema_file(message)))).collect()
    }
}

/// The schema of a message as its file has it: with an id, a title, a description and examples.
#[must_use]
pub fn schema_file(message: &Described) -> Value {
    let mut schema = message.schema.clone();
    schema["$schema"] = DIALECT.into();
    schema["$id"] = format!("urn:postrider:{}", message.name).into();
    schema["title"] = message.title.as_str().into();
    schema["description"] = message.summary.as_str().into();
    schema["examples"] = message.examples.iter().map(|(_, example)| example.clone()).collect();
    catalog::sorted(schema)
}
