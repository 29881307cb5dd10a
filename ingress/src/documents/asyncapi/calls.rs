//! Calls by request and reply: the operations of the HTTP API, with what the path names and the query asks put into the body. And
//! requests that internal systems publish themselves.

use schemars::JsonSchema;
use schemas::{
    DirectKind,
    catalog::{Described, Header, Side},
    ids::BATCH_MAX,
    subjects::stream,
};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::references::self_contained;
use crate::{
    bus::{
        calls::{ALIASES, OwnCall, TenantResolved, ValidateWrite, is_offered, operation_of_kind},
        feed::{ConsumerFound, FindConsumer},
    },
    documents::openapi,
    pipeline::{Operation, WouldAnswer, doc::ID, schema::Schema, types},
};

#[derive(Debug, Clone)]
pub(crate) struct CallDescription {
    /// The operation, as the OpenAPI document names it; also the last part of the subject.
    pub operation: &'static str,
    /// Shorter names that call the same.
    pub aliases: Vec<&'static str>,
    /// What is sent.
    pub request: Described,
    /// What comes back when it is done.
    pub answer: Described,
}

const REQUEST_HEADERS: &[Header] = &[
    Header {
        name: "Idempotency-Key",
        about: "What the call is done once by, as in HTTP: the first answer is kept for 24 hours and given again. 1 to 255 visible \
                ASCII characters.",
        required: false,
    },
    Header { name: "Nats-Msg-Id", about: "Taken for the `Idempotency-Key` where there is none.", required: false },
    Header { name: "traceparent", about: "The trace it belongs to (W3C Trace Context).", required: false },
];
const STATUS: Header = Header { name: "Mail-Status", about: "The status HTTP would answer with.", required: true };
const REPLAYED: Header = Header {
    name: "Idempotency-Replayed",
    about: "`true` when this is the answer to an earlier call.",
    required: false,
};
const ANSWER_HEADERS: &[Header] = &[STATUS, REPLAYED];
const REFUSAL_HEADERS: &[Header] = &[
    STATUS,
    Header {
        name: "Nats-Service-Error-Code",
        about: "The same, where tools for NATS services look for it.",
        required: true,
    },
    Header { name: "Nats-Service-Error", about: "The code of the refusal: `error` of the body.", required: true },
    REPLAYED,
    Header { name: "Retry-After", about: "Seconds to wait before the call is repeated.", required: false },
];

const DIRECT_HEADERS: &[Header] = &[
    Header {
        name: "Idempotency-Key",
        about: "What the request is done once by, as in HTTP: a repetition within 24 hours has no effect. 1 to 255 visible ASCII \
                characters. Without it every message is a request of its own.",
        required: false,
    },
    Header {
        name: "Nats-Msg-Id",
        about: "Taken for the `Idempotency-Key` where there is none. JetStream reads it, too, for all products together: of two \
                messages with the same one within a tenth of a second it keeps the first.",
        required: false,
    },
    Header { name: "traceparent", about: "The trace it belongs to (W3C Trace Context).", required: false },
];

/// The schema's name of an operation's request.
pub(crate) fn request_name(operation: &str) -> String {
    format!("mail.v1.api.{operation}")
}

/// The schema's name of an operation's answer.
pub(crate) fn answer_name(operation: &str) -> String {
    format!("mail.v1.api.{operation}.answer")
}

pub(super) fn all(operations: &[Operation], http: &Value) -> Vec<CallDescription> {
    let named = &http["components"]["schemas"];
    let mut calls: Vec<CallDescription> = operations
        .iter()
        .filter(|operation| is_offered(operation))
        .map(|operation| {
            let (schema, example) = request_of(http, operation);
            let (answer, answers) = answer_of(written(http, operation));
            call(
                operation.doc.id,
                operation.doc.summary,
                (self_contained(schema, named), vec![("request".to_owned(), example)]),
                (self_contained(answer, named), answers),
            )
        })
        .collect();
    calls.extend([validate(operations), resolve_tenant(), find_consumer(), contract()]);
    calls
}

/// What a call is answered with that is not done.
pub(super) fn refusal(http: &Value) -> Described {
    let schema = json!({"$ref": "#/components/schemas/Error"});
    Described {
        headers: REFUSAL_HEADERS,
        ..described(
            "mail.v1.api.refusal".to_owned(),
            "Refusal",
            "Every answer that is not a success.",
            Side::Outgoing,
            self_contained(schema, &http["components"]["schemas"]),
            vec![(
                "refusal".to_owned(),
                json!({
                    "ok": false, "error": "validation_failed", "detail": "email: is required",
                    "fields": [{"path": "email", "code": "required", "detail": "is required"}],
                }),
            )],
        )
    }
}

fn validate(operations: &[Operation]) -> CallDescription {
    let request = json!({"product_tenant_id": "tenant-1", "email": "ann@example.com"});
    let mut described = body::<ValidateWrite>(json!({"operation": "createContact", "request": request}));
    let writes = operations.iter().filter(|operation| is_offered(operation) && operation.is_write());
    let writes: Value = writes.map(|operation| operation.doc.id).collect();
    described.0["$defs"]["ValidateWrite"]["properties"]["operation"]["enum"] = writes;
    own_call(OwnCall::Validate, described, answer::<WouldAnswer>(json!({"would_answer": 201})))
}

/// The body of `tenant.resolve`.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only described")]
struct ResolveTenant {
    /// The caller's own id for the tenant.
    #[schemars(length(max = 255))]
    product_tenant_id: String,
    /// The engine's id for it: only a check.
    engine_tenant_id: Option<Uuid>,
}

fn resolve_tenant() -> CallDescription {
    own_call(
        OwnCall::ResolveTenant,
        body::<ResolveTenant>(json!({"product_tenant_id": "tenant-1"})),
        answer::<TenantResolved>(json!({"engine_tenant_id": ID})),
    )
}

fn find_consumer() -> CallDescription {
    own_call(
        OwnCall::FindConsumer,
        body::<FindConsumer>(json!({"consumer": "events", "since": null})),
        answer::<ConsumerFound>(json!({
            "stream": stream::EVENTS, "consumer": "acme_production_events", "subject": "mail.v1.event.acme.production.>",
            "pending": 42, "ack_wait_seconds": 30, "in_hand_max": 1_000,
        })),
    )
}

fn contract() -> CallDescription {
    let (schema, example) = no_fields();
    own_call(
        OwnCall::Contract,
        (schema, vec![("request".to_owned(), example)]),
        (standalone(types::part::<Map<String, Value>>()), vec![("answer".to_owned(), json!({"asyncapi": "3.0.0"}))]),
    )
}

/// A body without fields, and the example of it.
fn no_fields() -> (Value, Value) {
    (json!({"type": "object", "additionalProperties": false, "properties": {}}), json!({}))
}

/// The body of a call that HTTP does not have.
fn body<T: JsonSchema>(example: Value) -> SchemaWithExamples {
    (standalone(types::body::<T>()), vec![("request".to_owned(), example)])
}

/// The answer to such a call. The example comes without `ok`.
fn answer<T: JsonSchema>(mut example: Value) -> SchemaWithExamples {
    example["ok"] = true.into();
    (standalone(types::answer::<T>()), vec![("answer".to_owned(), example)])
}

fn standalone(schema: Schema) -> Value {
    self_contained(schema.value, &json!(schema.components))
}

type SchemaWithExamples = (Value, Vec<(String, Value)>);

fn own_call(own: OwnCall, request: SchemaWithExamples, answer: SchemaWithExamples) -> CallDescription {
    call(own.as_str(), own.summary(), request, answer)
}

fn call(
    operation: &'static str,
    summary: &str,
    request: SchemaWithExamples,
    answer: SchemaWithExamples,
) -> CallDescription {
    let aliases = ALIASES.iter().filter(|(_, id)| *id == operation).map(|(alias, _)| *alias);
    let address = format!("mail.v1.api.{{product}}.{{environment}}.{operation}");
    CallDescription {
        operation,
        aliases: aliases.collect(),
        request: Described {
            headers: REQUEST_HEADERS,
            address,
            ..described(request_name(operation), summary, summary, Side::Incoming, request.0, request.1)
        },
        answer: Described {
            headers: ANSWER_HEADERS,
            ..described(
                answer_name(operation),
                &format!("Answer: {summary}"),
                summary,
                Side::Outgoing,
                answer.0,
                answer.1,
            )
        },
    }
}

fn described(
    name: String,
    title: &str,
    summary: &str,
    side: Side,
    schema: Value,
    examples: Vec<(String, Value)>,
) -> Described {
    Described {
        name,
        title: title.to_owned(),
        summary: summary.to_owned(),
        side,
        address: String::new(),
        stream: None,
        headers: &[],
        schema,
        examples,
        read: |bytes| serde_json::from_slice::<Value>(bytes).map(drop),
    }
}

fn written<'a>(http: &'a Value, operation: &Operation) -> &'a Value {
    &http["paths"][operation.path][operation.method.as_str().to_lowercase()]
}

/// The body of a call, referring to the named schemas of the OpenAPI document, and an example.
fn request_of(http: &Value, operation: &Operation) -> (Value, Value) {
    let written = written(http, operation);
    let content = &written["requestBody"]["content"]["application/json"];
    let (mut schema, mut example) = match content["schema"].is_object() {
        true => (content["schema"].clone(), content["example"].clone()),
        false => no_fields(),
    };
    let parameters = written["parameters"].as_array().into_iter().flatten();
    let parameters = parameters.map(|parameter| openapi::resolve(http, parameter));
    let parameters: Vec<&Value> =
        parameters.filter(|parameter| parameter["in"] == "path" || parameter["in"] == "query").collect();
    if !parameters.is_empty() {
        schema = extensible(http, schema);
    }
    for parameter in parameters {
        let Some(name) = parameter["name"].as_str() else { continue };
        let mut own = parameter["schema"].clone();
        if let (Some(description), None) = (parameter.get("description"), own.get("description")) {
            own["description"] = description.clone();
        }
        if parameter["required"] == true {
            example[name] = openapi::parameter_example(name, &own);
        }
        add(&mut schema, name, &own, parameter["required"] == true);
    }
    (schema, example)
}

/// An object that fields can be added to, with the fields of a named one: each refers to the field there.
fn extensible(http: &Value, schema: Value) -> Value {
    let Some(path) = schema["$ref"].as_str() else { return schema };
    let mut named = openapi::resolve(http, &schema).clone();
    let fields = named.get_mut("properties").and_then(Value::as_object_mut);
    for (name, field) in fields.into_iter().flatten() {
        *field = json!({"$ref": format!("{path}/properties/{name}")});
    }
    named
}

/// Adds a property to an object, or to each of several alternatives.
fn add(schema: &mut Value, name: &str, own: &Value, required: bool) {
    for choice in ["anyOf", "oneOf"] {
        if let Some(Value::Array(alternatives)) = schema.get_mut(choice) {
            alternatives.iter_mut().for_each(|alternative| add(alternative, name, own, required));
            return;
        }
    }
    schema["properties"][name] = own.clone();
    if required {
        match schema.get_mut("required").and_then(Value::as_array_mut) {
            Some(names) => names.push(json!(name)),
            None => schema["required"] = json!([name]),
        }
    }
}

/// What an operation answers when it is done, and examples.
fn answer_of(written: &Value) -> SchemaWithExamples {
    let (mut schemas, mut examples) = (Vec::new(), Vec::new());
    for (status, response) in written["responses"].as_object().into_iter().flatten() {
        let content = &response["content"]["application/json"];
        if status.starts_with('2') && content["schema"].is_object() {
            schemas.push(content["schema"].clone());
            examples.push((status.clone(), content["example"].clone()));
        }
    }
    let schema = match <[Value; 1]>::try_from(schemas) {
        Ok([only]) => only,
        Err(several) => json!({"anyOf": several}),
    };
    (schema, examples)
}

/// Every kind of request that internal systems publish themselves: the body of HTTP under the subject of its kind.
pub(super) fn requests(operations: &[Operation], http: &Value) -> Vec<Described> {
    let of = |kind: &DirectKind| {
        let id = operation_of_kind(*kind);
        let operation = operations.iter().find(|operation| operation.doc.id == id)?;
        let summary = operation.doc.summary;
        let (schema, example) = request_of(http, operation);
        let mut request = Described {
            address: format!("mail.v1.request.{{product}}.{{environment}}.{kind}"),
            stream: Some(stream::REQUESTS),
            headers: DIRECT_HEADERS,
            ..described(
                format!("mail.v1.request.{kind}"),
                &format!("Request: {summary}"),
                &format!("{summary}: what HTTP takes for `{id}`."),
                Side::Incoming,
                schema,
                vec![("request".to_owned(), example)],
            )
        };
        if *kind == DirectKind::Transactional {
            or_several(http, &mut request);
        }
        request.schema = self_contained(request.schema, &http["components"]["schemas"]);
        Some(request)
    };
    DirectKind::ALL.iter().filter_map(of).collect()
}

/// One, or a list of them.
fn or_several(http: &Value, described: &mut Described) {
    let one = described.schema.clone();
    let mut item = extensible(http, one.clone());
    let key = json!({
        "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$",
        "description": "What this one is done once by, whatever message it comes in. Left out: the message's `Nats-Msg-Id` and its place.",
    });
    add(&mut item, "idempotency_key", &key, false);
    described.schema = json!({"anyOf": [one, {"type": "array", "items": item, "minItems": 1, "maxItems": BATCH_MAX}]});
    let mut second = described.examples[0].1.clone();
    second["email"] = json!("bob@example.com");
    described.examples.push(("several".to_owned(), json!([described.examples[0].1, second])));
}
