//! The contract of the bus: complete, valid, the one that is committed, and one that only ever grows.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use ingress::documents::{Contracts, asyncapi};
use schemas::{DirectKind, EventType, catalog::Described};
use serde_json::Value;

use crate::compat;

static CONTRACTS: LazyLock<Contracts> = LazyLock::new(ingress::contracts);

fn schemas_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../schemas")
}

fn is_update() -> bool {
    std::env::var_os("UPDATE").is_some()
}

fn json_in(path: &Path) -> Option<Value> {
    fs::read_to_string(path).ok().map(|text| serde_json::from_str(&text).unwrap())
}

/// Validates with formats, as readers in other languages would.
fn validator(schema: &Value) -> jsonschema::Validator {
    jsonschema::options()
        .with_draft(jsonschema::Draft::Draft202012)
        .should_validate_formats(true)
        .build(schema)
        .unwrap_or_else(|error| panic!("{}: {error}", schema["$id"]))
}

#[track_caller]
fn assert_valid(message: &Described, place: &str, value: &Value) {
    let schema = asyncapi::schema_file(message);
    let faults: Vec<String> =
        validator(&schema).iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(faults.is_empty(), "{place} is not what {} says: {}\n{value:#}", message.name, faults.join("; "));
}

/// The committed documents as one: the AsyncAPI document with the schemas it refers to in `json` and in `openapi.json`.
fn known_document() -> Value {
    let text = fs::read_to_string(schemas_dir().join("asyncapi.json")).unwrap_or_default();
    let Ok(mut known) = serde_json::from_str::<Value>(&text.replace("\"openapi.json#/", "\"#/")) else {
        return Value::Null;
    };
    let http = json_in(&schemas_dir().join("openapi.json")).unwrap_or_default();
    let schemas = known["components"]["schemas"].as_object_mut().unwrap();
    let own: Vec<String> = schemas
        .values()
        .filter_map(|schema| schema["$ref"].as_str())
        .filter(|path| path.starts_with("json/"))
        .map(str::to_owned)
        .collect();
    for path in own {
        // A file that is gone matters if its message is still there: then its reference leads nowhere.
        let Ok(text) = fs::read_to_string(schemas_dir().join(&path)) else { continue };
        let mut schema: Value = serde_json::from_str(&text.replace("#/$defs/", "#/components/schemas/")).unwrap();
        if let Some(Value::Object(definitions)) = schema.as_object_mut().unwrap().remove("$defs") {
            schemas.extend(definitions);
        }
        let name = path.trim_start_matches("json/").trim_end_matches(".json");
        schemas.insert(name.to_owned(), schema);
    }
    for (name, schema) in http["components"]["schemas"].as_object().into_iter().flatten() {
        schemas.entry(name.clone()).or_insert_with(|| schema.clone());
    }
    known
}

fn committed() -> String {
    CONTRACTS.asyncapi.committed(&serde_json::from_str(&CONTRACTS.openapi).unwrap())
}

fn payload<'a>(document: &'a Value, message: &Described) -> &'a Value {
    &document["components"]["messages"][&message.name]["payload"]
}

/// Nothing that somebody relies on changes within `v1`, and `UPDATE=1` does not write it either. What must go gets a `v2` beside it.
#[test]
fn the_contract_of_the_bus_only_ever_grew() {
    assert_only_grew();
}

/// To be called before anything is written: it reads what is committed.
pub fn assert_only_grew() {
    static KNOWN: LazyLock<Value> = LazyLock::new(known_document);
    let made = &CONTRACTS.asyncapi.document;
    let mut faults = Vec::new();
    for message in &CONTRACTS.asyncapi.messages {
        let before = payload(&KNOWN, message);
        if before.is_object() {
            let found = compat::compare(message.side, (&KNOWN, before), (made, payload(made, message)));
            faults.extend(found.into_iter().map(|fault| format!("{}: {fault}", message.name)));
        }
    }
    assert!(faults.is_empty(), "not a change of v1 that others survive:\n{}", faults.join("\n"));
}

#[test]
fn the_committed_schemas_are_those_of_the_code() {
    let directory = schemas_dir().join("json");
    let files = CONTRACTS.asyncapi.files();
    if is_update() {
        assert_only_grew();
        fs::create_dir_all(&directory).unwrap();
        for (name, text) in &files {
            fs::write(directory.join(name), text).unwrap();
        }
    }
    for (name, text) in &files {
        let known = fs::read_to_string(directory.join(name)).unwrap_or_default();
        assert!(known == *text, "schemas/json/{name} is not what the code makes: run with UPDATE=1 and commit it");
    }
    let there: BTreeSet<String> =
        fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let gone: Vec<&String> = there.iter().filter(|name| !files.contains_key(*name)).collect();
    assert!(gone.is_empty(), "messages that no code describes any more: {gone:?}");
}

#[test]
fn the_committed_document_is_that_of_the_code() {
    let (path, text) = (schemas_dir().join("asyncapi.json"), committed());
    if is_update() {
        assert_only_grew();
        fs::write(&path, &text).unwrap();
    }
    let known = fs::read_to_string(path).unwrap_or_default();
    let first = known.lines().zip(text.lines()).position(|(known, made)| known != made);
    assert!(
        known == text,
        "schemas/asyncapi.json is not what the code makes (first difference in line {:?}): run with UPDATE=1 and commit it",
        first.map(|line| line + 1)
    );
}

#[test]
fn every_example_is_read_and_is_what_its_schema_says() {
    for message in &CONTRACTS.asyncapi.messages {
        assert!(!message.examples.is_empty(), "{} has no example", message.name);
        for (name, example) in &message.examples {
            let read = (message.read)(example.to_string().as_bytes());
            assert!(read.is_ok(), "{} {name} is not read: {read:?}", message.name);
            assert_valid(message, name, example);
        }
    }
}

#[test]
fn every_kind_of_request_every_event_and_every_call_has_a_channel() {
    let document = &CONTRACTS.asyncapi.document;
    let channel = |key: &str| document["channels"][key]["address"].as_str();
    for kind in DirectKind::ALL {
        let address = format!("mail.v1.request.{{product}}.{{environment}}.{kind}");
        assert_eq!(channel(&format!("request.{kind}")), Some(address.as_str()));
    }
    for event in EventType::ALL.iter().filter(|event| **event != EventType::WebhookTest) {
        let address = format!("mail.v1.event.{{product}}.{{environment}}.{event}");
        assert_eq!(channel(&format!("event.{event}")), Some(address.as_str()));
    }
    for call in ["createContact", "sendMessage", "getSend", "explain", "validate", "tenant.resolve", "events.consumer"]
    {
        assert!(channel(&format!("api.{call}")).is_some(), "{call}");
    }
    assert!(channel("api.getPlatformHealth").is_none(), "operators' operations are not for products");
}

#[test]
fn every_reference_leads_somewhere_and_no_name_stands_for_two_schemas() {
    fn walk(value: &Value, document: &Value) {
        match value {
            Value::Object(object) => {
                if let Some(path) = object.get("$ref").and_then(Value::as_str) {
                    let target = path.strip_prefix('#').and_then(|path| document.pointer(path));
                    assert!(target.is_some(), "{path} leads nowhere");
                }
                assert!(!object.contains_key("x-conflict"), "two schemas are named {}", object["x-conflict"]);
                object.values().for_each(|value| walk(value, document));
            }
            Value::Array(items) => items.iter().for_each(|item| walk(item, document)),
            _ => {}
        }
    }
    walk(&CONTRACTS.asyncapi.document, &CONTRACTS.asyncapi.document);
}

/// The document's own rules, as the specification publishes them: checked by `tests/asyncapi/check.sh` with the official parser.
/// Here what tools need most: each operation's messages are among its channel's.
#[test]
fn an_operation_names_messages_of_its_channel() {
    let document = &CONTRACTS.asyncapi.document;
    let resolve =
        |reference: &Value| document.pointer(reference["$ref"].as_str().unwrap().trim_start_matches('#')).unwrap();
    for (name, operation) in document["operations"].as_object().unwrap() {
        assert!(["send", "receive"].contains(&operation["action"].as_str().unwrap()), "{name}");
        let mut sides = vec![operation];
        sides.extend(operation.get("reply"));
        for side in sides {
            let channel = side["channel"]["$ref"].as_str().unwrap();
            for message in side["messages"].as_array().unwrap() {
                assert!(message["$ref"].as_str().unwrap().starts_with(&format!("{channel}/messages/")), "{name}");
                assert!(resolve(resolve(message))["payload"].is_object(), "{name}");
            }
        }
    }
}
