//! Makes the OpenAPI document from the routes. What all operations have in common is added here.

use std::collections::BTreeMap;

use schemas::catalog::sorted;
use serde_json::{Map, Value, json};

use super::{
    VERSION,
    examples::example_of,
    shared::{SIGNED, headers, headers_of, idempotency_key, security_schemes, tenant_fields},
    tags,
};
use crate::pipeline::{
    Doc, KeyAccess, Operation,
    doc::{AnswerContent, DocumentedAnswer, RouteInput},
    error::ErrorBody,
    schema::Schema,
    types,
};

const DESCRIPTION: &str = "\
A multi-tenant email engine that other products drive over HTTP and JSON.

Every call names the caller's own tenant in `product_tenant_id`: in the body of writes, in the query of reads. A success has \
`ok: true`; every other answer is `{ok: false, error, detail?, fields?}` with a code to act on. A 2xx means that it is committed. \
POST, PATCH and DELETE take an `Idempotency-Key`: the first answer is kept for 24 hours and given again. A 429 or 503 carries \
`Retry-After`. A path that does not exist is answered 404 `not_found`, a method a path does not have 405 `method_not_allowed` with \
`Allow`. Bodies are JSON in UTF-8; unknown fields, duplicate keys and NUL characters are refused.";

const EXAMPLE_TENANT: &str = "tenant-1";

/// Parameters that many operations have.
const SHARED_PARAMETERS: [&str; 5] = ["id", "product_tenant_id", "engine_tenant_id", "limit", "cursor"];

/// The refusals of the pipeline that are the same for every operation with a key: status, name of the component, codes.
const SHARED: [(u16, &str, &[&str]); 6] = [
    (
        401,
        "Unauthorized",
        &["missing_credentials", "invalid_api_key", "stale_timestamp", "invalid_signature", "replayed_nonce"],
    ),
    (408, "RequestTimeout", &["request_timeout"]),
    (413, "BodyTooLarge", &["body_too_large"]),
    (415, "UnsupportedMediaType", &["unsupported_media_type"]),
    (429, "RateLimited", &["rate_limit_exceeded"]),
    (503, "Unavailable", &["unavailable"]),
];

/// The OpenAPI document of some operations.
#[must_use]
pub fn document(operations: &[Operation]) -> Value {
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    let mut components = Components::default();
    for operation in operations {
        let written = OperationWriter { operation, doc: &operation.doc, all: operations };
        let item = paths.entry(operation.path).or_default();
        item.insert(operation.method.as_str().to_lowercase(), written.operation(&mut components));
    }
    components.schema(&types::part::<ErrorBody<'_>>());
    components.responses.extend(shared_responses());
    components.parameters.insert("IdempotencyKey".to_owned(), idempotency_key());
    sorted(json!({
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://spec.openapis.org/oas/3.1/dialect/base",
        "info": {
            "title": "Postrider", "version": VERSION, "summary": "Campaigns, transactional and one-off mail over HTTP.",
            "description": DESCRIPTION,
        },
        "servers": [{"url": "/"}],
        "tags": tags::tags(),
        "x-tagGroups": tags::groups(),
        "paths": paths,
        "components": {
            "schemas": components.schemas,
            "responses": components.responses,
            "headers": headers(),
            "parameters": components.parameters,
            "securitySchemes": security_schemes(),
        },
    }))
}

/// What operations share and refer to by name.
#[derive(Default)]
struct Components {
    schemas: BTreeMap<String, Value>,
    responses: BTreeMap<String, Value>,
    parameters: BTreeMap<String, Value>,
}

impl Components {
    /// Keeps the named schemas of a schema, and answers the schema.
    fn schema(&mut self, schema: &Schema) -> Value {
        for (name, value) in &schema.components {
            let known = self.schemas.entry(name.clone()).or_insert_with(|| value.clone());
            // Two schemas under one name: the test of the document looks for this mark.
            if known != value {
                *known = json!({"x-conflict": name});
            }
        }
        schema.value.clone()
    }

    /// Keeps a parameter of many operations under its name and answers a reference to it; any other is answered as it is.
    fn parameter(&mut self, parameter: Value) -> Value {
        match parameter["name"].as_str() {
            Some(name) if SHARED_PARAMETERS.contains(&name) => {
                share(&mut self.parameters, "parameters", name.to_owned(), parameter)
            }
            _ => parameter,
        }
    }
}

/// Keeps a value under a name and answers a reference to it. If the name stands for another value, answers the value.
fn share(kept: &mut BTreeMap<String, Value>, kind: &str, name: String, value: Value) -> Value {
    let reference = json!({"$ref": format!("#/components/{kind}/{name}")});
    let known = kept.entry(name).or_insert_with(|| value.clone());
    if *known == value { reference } else { value }
}

fn error_with(codes: &[String]) -> Value {
    json!({"allOf": [
        {"$ref": "#/components/schemas/Error"},
        {"type": "object", "required": ["error"], "properties": {"error": {"type": "string", "enum": codes}}},
    ]})
}

fn shared_responses() -> BTreeMap<String, Value> {
    let mut responses = BTreeMap::new();
    for (status, name, codes) in SHARED {
        let codes: Vec<String> = codes.iter().map(|code| (*code).to_owned()).collect();
        responses.insert(name.to_owned(), error_response(status, &codes, headers_of(status, false, true)));
    }
    let internal = error_response(500, &["internal_error".to_owned()], headers_of(500, false, false));
    responses.insert("InternalError".to_owned(), internal);
    responses
}

fn error_response(status: u16, codes: &[String], headers: Value) -> Value {
    json!({
        "description": describe(status),
        "headers": headers,
        "content": {"application/json": {"schema": error_with(codes), "example": {"ok": false, "error": codes.first()}}},
    })
}

fn describe(status: u16) -> &'static str {
    match status {
        400 => "The request is malformed or breaks a rule; `fields` lists every fault of a validation.",
        401 => "The credentials are missing or wrong.",
        403 => "The caller may not do this.",
        404 => "What the request names is not there, or is another tenant's.",
        408 => "The body did not arrive in time.",
        409 => "The state of things does not allow it.",
        413 => "It is too large.",
        415 => "The body is not JSON in UTF-8, or is compressed.",
        422 => "It is well-formed and cannot be done.",
        429 => "Too much at a time; `Retry-After` says when again. Without it, a repeat finds the same.",
        500 => "A fault of ours. The log has the rest, under `X-Request-Id`.",
        502 => "The provider refused.",
        503 => "Something we need is away; the same request may succeed in a moment.",
        504 => "No outcome is known yet. With `Retry-After` the act goes on; without, nothing more is tried.",
        _ => "Refused.",
    }
}

struct OperationWriter<'a> {
    operation: &'a Operation,
    doc: &'a Doc,
    all: &'a [Operation],
}

impl OperationWriter<'_> {
    fn operation(&self, components: &mut Components) -> Value {
        let Operation { path, access, .. } = *self.operation;
        let mut operation = json!({
            "operationId": self.doc.id,
            "summary": self.doc.summary,
            "description": self.doc.description,
            "tags": [tags::tag(path)],
            "responses": self.responses(components),
        });
        let parameters = self.parameters(components);
        if !parameters.is_empty() {
            operation["parameters"] = json!(parameters);
        }
        if let Some(body) = self.body(components) {
            operation["requestBody"] = body;
        }
        operation["security"] = match access {
            None => json!([]),
            Some(KeyAccess { scope, .. }) => {
                // The headers are one credential: what it may do is said once, of the bearer.
                let signed: Map<String, Value> =
                    SIGNED.iter().map(|(name, ..)| ((*name).to_owned(), json!([]))).collect();
                json!([{"bearer": [scope]}, signed])
            }
        };
        if let (Some(KeyAccess { scope, .. }), true) = (access, self.operation.is_write()) {
            operation["x-scope"] = json!(scope);
        }
        operation
    }

    fn in_tenant(&self) -> bool {
        self.operation.access.is_some_and(|access| access.in_tenant)
    }

    fn is_keyed(&self) -> bool {
        self.operation.access.is_some()
    }

    fn parameters(&self, components: &mut Components) -> Vec<Value> {
        let is_write = self.operation.is_write();
        let mut parameters = Vec::new();
        for name in self.operation.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')) {
            let own = self.doc.path.and_then(|fields| fields().into_iter().find(|field| field.name == name));
            let schema = components.schema(
                &own.map_or_else(|| Schema::raw(json!({"type": "string", "format": "uuid"})), |own| own.schema),
            );
            let parameter = json!({"name": name, "in": "path", "required": true, "schema": schema});
            parameters.push(components.parameter(parameter));
        }
        let tenant = tenant_fields(is_write);
        let tenant = tenant.iter().filter(|_| self.in_tenant() && !is_write);
        for field in tenant.chain(&self.operation.input.parameters()) {
            let mut schema = components.schema(&field.schema);
            let mut parameter = json!({"name": field.name, "in": "query", "required": field.required});
            if let Some(description) = schema.as_object_mut().and_then(|schema| schema.remove("description")) {
                parameter["description"] = description;
            }
            parameter["schema"] = schema;
            parameters.push(components.parameter(parameter));
        }
        if self.is_keyed() && is_write {
            parameters.push(json!({"$ref": "#/components/parameters/IdempotencyKey"}));
        }
        parameters
    }

    fn body(&self, components: &mut Components) -> Option<Value> {
        let KeyAccess { in_tenant, body_max_bytes, .. } = self.operation.access?;
        let RouteInput::Body(schema) = self.operation.input else { return None };
        let (mut schema, mut example) = (schema(), self.doc.example.clone());
        if in_tenant {
            schema.add_fields(&tenant_fields(self.operation.is_write()));
            example["product_tenant_id"] = json!(EXAMPLE_TENANT);
        }
        let schema = schema.named_unless_it_is(|| self.name("Body"));
        Some(json!({
            "required": true,
            "description": format!("At most {body_max_bytes} bytes."),
            "content": {"application/json": {"schema": components.schema(&schema), "example": example}},
        }))
    }

    /// A name in `components/schemas` for what has none: the operation's, and what it is.
    fn name(&self, what: &str) -> String {
        let (first, rest) = self.doc.id.split_at(1);
        format!("{}{rest}{what}", first.to_uppercase())
    }

    fn responses(&self, components: &mut Components) -> Value {
        let mut responses = BTreeMap::new();
        for (status, codes) in self.refusals() {
            let shared = SHARED.iter().find(|shared| shared.0 == status && codes == shared.2);
            let response = match shared {
                Some((_, name, _)) => json!({"$ref": format!("#/components/responses/{name}")}),
                None if status == 500 => json!({"$ref": "#/components/responses/InternalError"}),
                None => {
                    let headers = headers_of(status, self.operation.is_write(), self.is_keyed());
                    let response = error_response(status, &codes, headers);
                    match self.response_name(status) {
                        Some(name) => share(&mut components.responses, "responses", name, response),
                        None => response,
                    }
                }
            };
            responses.insert(status.to_string(), response);
        }
        for (position, answer) in self.doc.answers.iter().enumerate() {
            let status = answer.status.to_string();
            // A status that the pipeline refuses with, too: either shape.
            let codes = self.refusals().remove(&answer.status);
            responses.insert(status, self.answer(position, answer, codes.as_deref(), components));
        }
        json!(responses)
    }

    /// The name of an error response that others have, too: its status, who answers it, and the one code that is the operation's own.
    /// A response with more codes than that is not shared.
    fn response_name(&self, status: u16) -> Option<String> {
        let kind = match (self.is_keyed(), self.operation.is_write()) {
            (false, _) => "open",
            (true, false) => "read",
            (true, true) => "write",
        };
        let scope = self.operation.access.map(|access| access.scope).filter(|_| status == 403);
        let codes = self.doc.refusals.iter().filter(|(own, _)| *own == status).map(|(_, code)| *code);
        let own: Vec<&str> = scope.into_iter().chain(codes).collect();
        match own.as_slice() {
            [] => Some(format!("{status}.{kind}")),
            [code] => Some(format!("{status}.{kind}.{}", code.replace(':', "."))),
            _ => None,
        }
    }

    fn answer(
        &self,
        position: usize,
        answer: &DocumentedAnswer,
        codes: Option<&[String]>,
        components: &mut Components,
    ) -> Value {
        let mut response = json!({
            "description": answer.description,
            "headers": headers_of(answer.status, self.operation.is_write(), self.is_keyed()),
        });
        match &answer.content {
            AnswerContent::Json(schema) => {
                let schema = self.named_answer(position, &schema());
                let schema = components.schema(&schema);
                let mut example = example_of(&schema, &components.schemas);
                if example.get("ok").is_some() {
                    example["ok"] = json!(answer.status < 400);
                }
                let schema = match codes {
                    Some(codes) => json!({"anyOf": [schema, error_with(codes)]}),
                    None => schema,
                };
                response["content"] = json!({"application/json": {"schema": schema, "example": example}});
            }
            AnswerContent::Other(content_type) => {
                response["content"] = json!({*content_type: {"schema": {"type": "string"}}});
                if let Some(codes) = codes {
                    response["content"]["application/json"] = json!({"schema": error_with(codes)});
                }
            }
            AnswerContent::Files(content_types) => {
                for content_type in *content_types {
                    response["content"][*content_type] = json!({"schema": {"type": "string"}});
                }
            }
            AnswerContent::Nothing => {}
        }
        if !answer.links.is_empty() {
            let links = answer.links.iter().map(|(target, field)| ((*target).to_owned(), self.link(target, field)));
            response["links"] = Value::Object(links.collect());
        }
        response
    }

    /// An answer's schema under a name of its own; one that is the same as an answer before has the name of that.
    fn named_answer(&self, position: usize, schema: &Schema) -> Schema {
        let same =
            |answer: &&DocumentedAnswer| matches!(answer.content, AnswerContent::Json(known) if known() == *schema);
        let first = self.doc.answers[..position].iter().find(same).unwrap_or(&self.doc.answers[position]);
        let is_first = self.doc.answers.first().is_some_and(|answer| answer.status == first.status);
        schema.clone().named_unless_it_is(|| {
            self.name(&if is_first { "Answer".to_owned() } else { format!("Answer{}", first.status) })
        })
    }

    fn link(&self, target: &str, field: &str) -> Value {
        let mut parameters = json!({"path.id": format!("$response.body#/{field}")});
        let read = self.all.iter().any(|operation| operation.doc.id == target && !operation.is_write());
        if read && self.in_tenant() {
            let ours = if self.operation.is_write() { "body#/" } else { "query." };
            parameters["query.product_tenant_id"] = json!(format!("$request.{ours}product_tenant_id"));
        }
        json!({"operationId": target, "parameters": parameters})
    }

    /// Every error code by status, those of the pipeline first.
    fn refusals(&self) -> BTreeMap<u16, Vec<String>> {
        let mut all: BTreeMap<u16, Vec<String>> = BTreeMap::new();
        let mut add = |status: u16, code: &str| {
            let codes = all.entry(status).or_default();
            if !codes.iter().any(|known| known == code) {
                codes.push(code.to_owned());
            }
        };
        let is_write = self.operation.is_write();
        if let Some(KeyAccess { scope, in_tenant, .. }) = self.operation.access {
            add(400, "validation_failed");
            add(400, "ambiguous_credentials");
            add(400, "incomplete_body");
            add(403, &format!("missing_scope:{scope}"));
            for code in ["product_mismatch", "environment_mismatch", "tenant_mismatch"] {
                add(403, code);
            }
            for (status, _, codes) in SHARED {
                if status != 415 || is_write {
                    codes.iter().for_each(|code| add(status, code));
                }
            }
            if in_tenant {
                add(404, "tenant_not_found");
            }
            if is_write {
                add(400, "invalid_json");
                add(409, "idempotency_in_progress");
                add(422, "idempotency_key_reused");
                add(422, "contact_erased");
            }
        }
        add(500, "internal_error");
        for (status, code) in &self.doc.refusals {
            add(*status, code);
        }
        all
    }
}
