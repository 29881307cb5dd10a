//! The documentation of a route, from which the OpenAPI document is made.

use schemars::JsonSchema;
use serde_json::Value;

use super::{
    schema::{Schema, SchemaField},
    types,
};

/// An id for examples.
pub(crate) const ID: &str = "0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e2f";
/// A time for examples.
pub(crate) const AT: &str = "2026-03-01T09:00:00.000Z";

/// The documentation of one operation. What all operations have in common (credentials, tenant, idempotency, the refusals
/// of the pipeline) is added when the document is made.
#[derive(Debug, Clone)]
pub struct Doc {
    pub(crate) id: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) description: &'static str,
    pub(crate) query: Vec<SchemaField>,
    pub(crate) path: Vec<SchemaField>,
    pub(crate) body: Option<DocumentedBody>,
    pub(crate) answers: Vec<DocumentedAnswer>,
    pub(crate) refusals: Vec<(u16, &'static str)>,
}

/// A request body.
#[derive(Debug, Clone)]
pub(crate) struct DocumentedBody {
    pub(crate) schema: Schema,
    pub(crate) example: Value,
}

/// An answer that is not in the error shape.
#[derive(Debug, Clone)]
pub(crate) struct DocumentedAnswer {
    pub(crate) status: u16,
    pub(crate) description: &'static str,
    pub(crate) content: AnswerContent,
    /// Operations that take a field of this answer as their `{id}`.
    pub(crate) links: Vec<(&'static str, &'static str)>,
}

/// The content of an answer.
#[derive(Debug, Clone)]
pub(crate) enum AnswerContent {
    Json { schema: Schema, example: Value },
    Other(&'static str),
    Nothing,
}

impl Doc {
    /// An operation. `id` is its name in generated clients, such as `createContact`; the summary is a line, the description may be
    /// Markdown.
    #[must_use]
    pub fn new(id: &'static str, summary: &'static str, description: &'static str) -> Self {
        Self {
            id,
            summary,
            description,
            query: Vec::new(),
            path: Vec::new(),
            body: None,
            answers: Vec::new(),
            refusals: Vec::new(),
        }
    }

    /// Query parameters: the fields of the type that reads them, without the tenant's.
    #[must_use]
    pub fn query<T: JsonSchema>(mut self) -> Self {
        self.query.extend(types::query::<T>());
        self
    }

    /// Path parameters other than an id named `id`: the fields of a type.
    #[must_use]
    pub fn path_parameters<T: JsonSchema>(mut self) -> Self {
        self.path.extend(types::query::<T>());
        self
    }

    /// The type that reads the body of a write, and an example, both without the tenant's fields.
    #[must_use]
    pub fn body<T: JsonSchema>(mut self, example: Value) -> Self {
        self.body = Some(DocumentedBody { schema: types::body::<T>(), example });
        self
    }

    /// An answer in JSON that is not an error: the type that the handler answers with, and an example, both without `ok`, which is
    /// then true.
    #[must_use]
    pub fn answer<T: JsonSchema>(self, status: u16, description: &'static str, mut example: Value) -> Self {
        if example.get("ok").is_none() {
            example["ok"] = true.into();
        }
        self.json_answer(status, description, types::answer::<T>(), example)
    }

    /// An answer in JSON that does not have this API's form: the type and the example are all of it.
    #[must_use]
    pub fn plain_answer<T: JsonSchema>(self, status: u16, description: &'static str, example: Value) -> Self {
        self.json_answer(status, description, types::part::<T>(), example)
    }

    fn json_answer(mut self, status: u16, description: &'static str, schema: Schema, example: Value) -> Self {
        self.answers.push(DocumentedAnswer {
            status,
            description,
            content: AnswerContent::Json { schema, example },
            links: Vec::new(),
        });
        self
    }

    /// An answer that is not JSON.
    #[must_use]
    pub fn other(mut self, status: u16, description: &'static str, content_type: &'static str) -> Self {
        self.answers.push(DocumentedAnswer {
            status,
            description,
            content: AnswerContent::Other(content_type),
            links: Vec::new(),
        });
        self
    }

    /// An answer without a body.
    #[must_use]
    pub fn empty(mut self, status: u16, description: &'static str) -> Self {
        self.answers.push(DocumentedAnswer { status, description, content: AnswerContent::Nothing, links: Vec::new() });
        self
    }

    /// Says that a field of the answer above is the `{id}` of other operations, by their ids.
    #[must_use]
    pub fn leads_to(mut self, field: &'static str, operations: &[&'static str]) -> Self {
        if let Some(answer) = self.answers.last_mut() {
            answer.links.extend(operations.iter().map(|operation| (*operation, field)));
        }
        self
    }

    /// Error codes of the handler, with their status. Those of the pipeline are added to all operations.
    #[must_use]
    pub fn refuses(mut self, status: u16, codes: &[&'static str]) -> Self {
        self.refusals.extend(codes.iter().map(|code| (status, *code)));
        self
    }

    /// Its name in generated clients.
    #[must_use]
    pub fn id(&self) -> &'static str {
        self.id
    }
}
