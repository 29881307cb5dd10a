//! The AsyncAPI 3.0 document: channels, what the engine sends and receives on them, the messages, the servers.

use std::collections::BTreeMap;

use schemas::{
    Rendered,
    catalog::{Described, Header, Side, sorted},
    messages::Message,
};
use serde_json::{Map, Value, json};

use super::{calls::CallDescription, references::with_references};
use crate::documents::openapi;

const DESCRIPTION: &str = "\
A multi-tenant email engine, for internal systems that speak NATS. Everything HTTP offers is here, too.

**Requests** are published to `mail.v1.request.<product>.<environment>.<kind>`. JetStream answers that a request is stored (a \
PubAck); its outcome comes as events. Of each kind a product may have 256 requests waiting in an environment, of at most 256 KB \
each with their headers: more (`err_code` 10077) and longer ones (10054) are refused in the PubAck. An invalid request becomes the event `request.rejected`. With a `Nats-Msg-Id` a \
request has one effect, however often it is published within 24 hours; make it unique over all products.

**Calls** to `mail.v1.api.<product>.<environment>.<operation>` are answered at once, as HTTP would. `Mail-Status` is the status.

**Events** come on `mail.v1.event.<product>.<environment>.<type>`, at least once and in no order, and are kept for seven days, or the newest 4 GiB of all. \
Their attributes are in headers, as CloudEvents has it.

Within `v1` everything is only ever added: readers ignore fields, events and words they do not know. Channels tagged `internal` are \
between the engine's own stages and may not be used by others.";

/// Builds the document from all messages and calls.
pub(super) fn build_document(messages: &[Described], calls: &[CallDescription]) -> Value {
    let mut document = AsyncApiDocument::default();
    for message in messages {
        document.describe(message);
    }
    for message in messages {
        let (tag, actions): (&str, &[&str]) = match message.side {
            Side::Internal => ("internal", &["send", "receive"]),
            Side::Outgoing if message.stream.is_some() => ("events", &["send"]),
            Side::Incoming if message.stream.is_some() => ("requests", &["receive"]),
            Side::Outgoing | Side::Incoming => continue,
        };
        // The name without the common prefix.
        let key = message.name.trim_start_matches("mail.v1.");
        document.channel(key, message, tags(tag));
        for action in actions {
            document.operation(format!("{action}.{key}"), action, key);
        }
    }
    document.calls(calls);
    document.finish()
}

#[derive(Default)]
struct AsyncApiDocument {
    channels: Map<String, Value>,
    operations: Map<String, Value>,
    messages: Map<String, Value>,
    schemas: BTreeMap<String, Value>,
}

impl AsyncApiDocument {
    /// Adds a message and the schemas that it refers to.
    fn describe(&mut self, message: &Described) {
        let (payload, named) = with_references(message.schema.clone());
        for (name, schema) in named {
            let known = self.schemas.entry(name.clone()).or_insert_with(|| schema.clone());
            // Two schemas have one name: a test of the document fails on this field.
            if *known != schema {
                *known = json!({"x-conflict": name});
            }
        }
        self.schemas.insert(message.name.clone(), payload);
        let example = |(name, payload): &(String, Value)| json!({"name": name, "payload": payload});
        let mut described = json!({
            "name": message.name, "title": message.title, "summary": message.summary,
            "payload": {"$ref": format!("#/components/schemas/{}", message.name)},
            "examples": message.examples.iter().filter(|(_, payload)| payload.is_object()).map(example).collect::<Vec<_>>(),
        });
        if message.name == Rendered::SCHEMA {
            // Its schema is that of the JSON at the head of a frame.
            described["contentType"] = "application/octet-stream".into();
        }
        if !message.headers.is_empty() {
            described["headers"] = self.headers(message.headers);
        }
        self.messages.insert(message.name.clone(), described);
    }

    /// The schema of a message's headers: a reference, since many messages have the same.
    fn headers(&mut self, list: &[Header]) -> Value {
        let names: Vec<&str> = list.iter().map(|header| header.name).collect();
        let (mut name, schema) = (format!("headers.{}", names.join(".")), headers(list));
        // The same names may mean something else in another message.
        while self.schemas.get(&name).is_some_and(|known| *known != schema) {
            name.push('_');
        }
        let reference = json!({"$ref": format!("#/components/schemas/{name}")});
        self.schemas.insert(name, schema);
        reference
    }

    /// Adds a channel with one message, which says what it is for.
    fn channel(&mut self, key: &str, message: &Described, tags: Value) {
        let mut channel = json!({
            "address": message.address,
            "messages": {"message": {"$ref": format!("#/components/messages/{}", message.name)}},
            "tags": tags,
        });
        let parameters = parameters(&message.address);
        if !parameters.is_empty() {
            channel["parameters"] = Value::Object(parameters);
        }
        if let Some(stream) = message.stream {
            channel["x-jetstream"] = json!({"stream": stream});
        }
        self.channels.insert(key.to_owned(), channel);
    }

    fn operation(&mut self, key: String, action: &str, channel: &str) {
        let operation = json!({
            "action": action, "channel": {"$ref": format!("#/channels/{channel}")},
            "messages": [{"$ref": format!("#/channels/{channel}/messages/message")}],
        });
        self.operations.insert(key, operation);
    }

    /// Adds the calls: each on a channel of its own, the answers on the caller's inbox.
    fn calls(&mut self, calls: &[CallDescription]) {
        let reference = |name: &str| json!({"$ref": format!("#/components/messages/{name}")});
        let mut answers: Map<String, Value> =
            calls.iter().map(|call| (call.operation.to_owned(), reference(&call.answer.name))).collect();
        answers.insert("refusal".to_owned(), reference("mail.v1.api.refusal"));
        self.channels.insert(
            "answers".to_owned(),
            json!({
                "address": null, "title": "Answers", "summary": "Where the caller said that it listens: its own inbox.",
                "messages": answers, "tags": tags("calls"),
            }),
        );
        for call in calls {
            let key = format!("api.{}", call.operation);
            self.channel(&key, &call.request, tags("calls"));
            if !call.aliases.is_empty() {
                self.channels[&key]["x-aliases"] = call
                    .aliases
                    .iter()
                    .map(|alias| json!(format!("mail.v1.api.{{product}}.{{environment}}.{alias}")))
                    .collect();
            }
            self.operation(format!("answer.{key}"), "receive", &key);
            self.operations[&format!("answer.{key}")]["reply"] = json!({
                "address": {"location": "$message.header#/reply", "description": "The reply subject of the request."},
                "channel": {"$ref": "#/channels/answers"},
                "messages": [
                    {"$ref": format!("#/channels/answers/messages/{}", call.operation)},
                    {"$ref": "#/channels/answers/messages/refusal"},
                ],
            });
        }
    }

    fn finish(self) -> Value {
        sorted(json!({
            "asyncapi": "3.0.0",
            "info": {
                "title": "Postrider", "version": openapi::VERSION, "description": DESCRIPTION,
                "license": {"name": "Apache-2.0"},
                "tags": [
                    {"name": "requests", "description": "Published by internal systems, stored by JetStream."},
                    {"name": "calls", "description": "Requests that are answered at once."},
                    {"name": "events", "description": "What happened."},
                    {"name": "internal", "description": "Between the engine's stages. Not for others."},
                ],
            },
            "id": "urn:postrider",
            "defaultContentType": "application/json",
            "servers": servers(),
            "channels": self.channels,
            "operations": self.operations,
            "components": {
                "messages": self.messages,
                "schemas": self.schemas,
                "securitySchemes": {
                    "nkey": {
                        "type": "asymmetricEncryption",
                        "description": "An Ed25519 key: the server knows the public half (`postrider nats-user`), the client signs a \
                                        challenge with its seed.",
                    },
                },
            },
        }))
    }
}

fn servers() -> Value {
    json!({
        "production": {
            "host": "{host}", "protocol": "nats", "title": "NATS with JetStream",
            "description": "Three servers, TLS (`tls://`), users by nkey. A user may publish under its product and environment, hear \
                            its own events, and listen to the inbox prefix `_INBOX_<product>_<environment>`, which the client sets.",
            "variables": {"host": {"description": "Host and port of one server or several.", "default": "nats-0.nats:4222"}},
            "security": [{"$ref": "#/components/securitySchemes/nkey"}],
        },
        "development": {
            "host": "localhost:4222", "protocol": "nats", "title": "What `ops/dev` starts",
            "description": "Without users and TLS; `ops/dev` prints the port.",
        },
    })
}

fn tags(name: &str) -> Value {
    json!([{"name": name}])
}

fn headers(headers: &[Header]) -> Value {
    let properties: Map<String, Value> = headers
        .iter()
        .map(|header| (header.name.to_owned(), json!({"type": "string", "description": header.about})))
        .collect();
    let required: Vec<&str> = headers.iter().filter(|header| header.required).map(|header| header.name).collect();
    json!({"type": "object", "properties": properties, "required": required})
}

/// The tokens of a subject that vary.
fn parameters(address: &str) -> Map<String, Value> {
    address
        .split('.')
        .filter_map(|token| token.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| (name.to_owned(), parameter(name)))
        .collect()
}

fn parameter(name: &str) -> Value {
    use schemas::{Environment, Lane};
    match name {
        "product" => {
            json!({"description": "The product's slug: 2 to 32 of a-z, 0-9 and dashes inside.", "examples": ["acme"]})
        }
        "environment" => json!({
            "description": "Where mail goes out, or is captured.",
            "enum": Environment::NAMES,
        }),
        "lane" => json!({
            "description": "One-off and transactional mail, or campaigns.",
            "enum": Lane::NAMES,
        }),
        "kind" => json!({"description": "The kind of request."}),
        "stage" => json!({"description": "The stage that publishes it."}),
        "source" => json!({"description": "`tracking` or a provider."}),
        "waiter" => json!({"description": "A process's own random token."}),
        _ => json!({"description": name}),
    }
}
