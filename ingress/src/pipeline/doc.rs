//! The documentation of a route, from which the OpenAPI document is made.

use schemars::JsonSchema;
use serde_json::{Value, json};

use super::{
    page::{PageQuery, Resource, ResourcePage, SingleResource},
    schema::{Schema, SchemaField},
    types,
};

/// An id for examples.
pub(crate) const ID: &str = "0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e2f";
/// A time for examples.
pub(crate) const AT: &str = "2026-03-01T09:00:00.000Z";

/// What a route reads: the types of its handler.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RouteInput {
    /// Nothing that the pipeline reads.
    Nothing,
    /// Query parameters, without the tenant's.
    Query(fn() -> Vec<SchemaField>),
    /// A body, without the tenant's fields.
    Body(fn() -> Schema),
}

impl RouteInput {
    pub(super) fn page_query<T: JsonSchema>() -> Self {
        Self::Query(|| types::query::<T>().into_iter().chain(types::query::<PageQuery>()).collect())
    }

    pub(crate) fn parameters(self) -> Vec<SchemaField> {
        match self {
            Self::Query(fields) => fields(),
            Self::Nothing | Self::Body(_) => Vec::new(),
        }
    }
}

/// The documentation of one operation. What it reads is known from its handler, examples of answers are made from their schemas, and
/// what all operations have in common (credentials, tenant, idempotency, the refusals of the pipeline) is added when the document is
/// made.
#[must_use]
#[derive(Debug, Clone)]
pub struct Doc {
    pub(crate) id: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) description: &'static str,
    pub(crate) path: Option<fn() -> Vec<SchemaField>>,
    /// An example of the body.
    pub(crate) example: Value,
    pub(crate) answers: Vec<DocumentedAnswer>,
    pub(crate) refusals: Vec<(u16, &'static str)>,
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

#[derive(Debug, Clone, Copy)]
pub(crate) enum AnswerContent {
    Json(fn() -> Schema),
    Other(&'static str),
    Files(&'static [&'static str]),
    Nothing,
}

impl Doc {
    /// An operation. `id` is its name in generated clients, such as `createContact`; the summary is a line, the description may be
    /// Markdown.
    pub fn new(id: &'static str, summary: &'static str, description: &'static str) -> Self {
        let (answers, refusals) = (Vec::new(), Vec::new());
        Self { id, summary, description, path: None, example: json!({}), answers, refusals }
    }

    /// Path parameters other than an id named `id`: the fields of a type.
    pub fn path_parameters<T: JsonSchema>(self) -> Self {
        Self { path: Some(types::query::<T>), ..self }
    }

    /// An example of the body, without the tenant's fields. Without one it is an empty object.
    pub fn example(self, example: Value) -> Self {
        Self { example, ..self }
    }

    /// An answer in JSON that is not an error: the type that the handler answers with, without `ok`, which is then true.
    pub fn answer<T: JsonSchema>(self, status: u16, description: &'static str) -> Self {
        self.answered(status, description, AnswerContent::Json(types::answer::<T>))
    }

    /// 200 with one resource, and the refusal where there is none.
    pub fn single<T: Resource>(self, description: &'static str) -> Self {
        self.answer::<SingleResource<T>>(200, description).refuses(404, &[T::NOT_FOUND])
    }

    /// 200 with a page of resources.
    pub fn page<T: Resource>(self, description: &'static str) -> Self {
        self.answer::<ResourcePage<T>>(200, description)
    }

    /// An answer in JSON that does not have this API's form: the type is all of it.
    pub fn plain_answer<T: JsonSchema>(self, status: u16, description: &'static str) -> Self {
        self.answered(status, description, AnswerContent::Json(types::part::<T>))
    }

    /// An answer that is not JSON.
    pub fn other(self, status: u16, description: &'static str, content_type: &'static str) -> Self {
        self.answered(status, description, AnswerContent::Other(content_type))
    }

    /// An answer in one of several types that are not JSON, as the caller asks.
    pub fn files(self, status: u16, description: &'static str, content_types: &'static [&'static str]) -> Self {
        self.answered(status, description, AnswerContent::Files(content_types))
    }

    /// An answer without a body.
    pub fn empty(self, status: u16, description: &'static str) -> Self {
        self.answered(status, description, AnswerContent::Nothing)
    }

    fn answered(mut self, status: u16, description: &'static str, content: AnswerContent) -> Self {
        self.answers.push(DocumentedAnswer { status, description, content, links: Vec::new() });
        self
    }

    /// Says that a field of the answer above is the `{id}` of other operations, by their ids.
    pub fn leads_to(mut self, field: &'static str, operations: &[&'static str]) -> Self {
        if let Some(answer) = self.answers.last_mut() {
            answer.links.extend(operations.iter().map(|operation| (*operation, field)));
        }
        self
    }

    /// Error codes of the handler, with their status. Those of the pipeline are added to all operations.
    pub fn refuses(mut self, status: u16, codes: &[&'static str]) -> Self {
        self.refusals.extend(codes.iter().map(|code| (status, *code)));
        self
    }
}
