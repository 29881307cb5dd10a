//! Requests that internal systems publish themselves: the bodies of the HTTP API under the subjects of their kinds.

use schemas::{
    DirectKind,
    catalog::{Described, Header, Side},
    subjects::stream,
};
use serde_json::{Value, json};

use super::{
    calls::{add, extensible, request_of},
    references::self_contained,
};
use crate::{bus::calls::operation_of_kind, pipeline::Operation};

/// Most transactional messages one request may hold.
const TRANSACTIONAL_MAX: usize = 500;

const HEADERS: &[Header] = &[
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

/// Every kind.
pub(super) fn all(operations: &[Operation], http: &Value) -> Vec<Described> {
    let of = |kind: &DirectKind| {
        let id = operation_of_kind(*kind);
        let operation = operations.iter().find(|operation| operation.doc.id == id)?;
        let summary = http["paths"][operation.path][operation.method.as_str().to_lowercase()]["summary"].as_str()?;
        let (schema, example) = request_of(http, operation);
        let mut described = Described {
            name: format!("mail.v1.request.{kind}"),
            title: format!("Request: {summary}"),
            summary: format!("{summary}: what HTTP takes for `{id}`."),
            side: Side::Incoming,
            address: format!("mail.v1.request.{{product}}.{{environment}}.{kind}"),
            stream: Some(stream::REQUESTS),
            headers: HEADERS,
            schema,
            examples: vec![("request".to_owned(), example)],
            read: |bytes| serde_json::from_slice::<Value>(bytes).map(drop),
        };
        if *kind == DirectKind::Transactional {
            or_several(http, &mut described);
        }
        described.schema = self_contained(described.schema, &http["components"]["schemas"]);
        Some(described)
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
    described.schema =
        json!({"anyOf": [one, {"type": "array", "items": item, "minItems": 1, "maxItems": TRANSACTIONAL_MAX}]});
    let mut second = described.examples[0].1.clone();
    second["email"] = json!("bob@example.com");
    described.examples.push(("several".to_owned(), json!([described.examples[0].1, second])));
}
