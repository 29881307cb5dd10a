//! What OpenAPI 3.1 asks of a document, and what we ask of ours.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use ingress::pipeline::KeyAccess;
use serde_json::Value;

use crate::common::contract::CONTRACT;

fn committed() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../schemas/openapi.json")
}

#[test]
fn the_committed_document_is_that_of_the_code() {
    let text = ingress::contracts().openapi;
    if std::env::var_os("UPDATE").is_some() {
        crate::asyncapi::assert_only_grew();
        std::fs::write(committed(), &text).unwrap();
    }
    let known = std::fs::read_to_string(committed()).unwrap_or_default();
    let first = known.lines().zip(text.lines()).position(|(known, made)| known != made);
    assert!(
        known == text,
        "schemas/openapi.json is not what the code makes (first difference in line {:?}): run with UPDATE=1 and commit it",
        first.map(|line| line + 1)
    );
}

/// Every operation with its method and path.
fn operations() -> Vec<(String, &'static str, &'static Value)> {
    let paths = CONTRACT.document()["paths"].as_object().unwrap();
    let verbs = |item: &'static Value| item.as_object().unwrap().iter();
    paths
        .iter()
        .flat_map(|(path, item)| verbs(item).map(move |(verb, op)| (verb.to_uppercase(), path.as_str(), op)))
        .collect()
}

#[test]
fn every_registered_route_is_in_it_once() {
    let registered: BTreeSet<(String, &str)> =
        ingress::operations().iter().map(|operation| (operation.method.as_str().to_owned(), operation.path)).collect();
    let documented: BTreeSet<(String, &str)> = operations().into_iter().map(|(verb, path, _)| (verb, path)).collect();
    assert_eq!(registered, documented);
    assert_eq!(ingress::operations().len(), registered.len());
}

#[test]
fn every_operation_says_what_it_is_and_answers() {
    let mut ids = BTreeMap::new();
    for (verb, path, operation) in operations() {
        let place = format!("{verb} {path}");
        let id = operation["operationId"].as_str().unwrap();
        assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric()) && !id.is_empty(), "{place}: {id}");
        assert_eq!(ids.insert(id, place.clone()), None, "{id} twice");
        assert!(!operation["summary"].as_str().unwrap().is_empty(), "{place} has no summary");
        let responses = operation["responses"].as_object().unwrap();
        assert!(responses.keys().any(|status| status.starts_with(['2', '3'])), "{place} never succeeds");
        for (status, response) in responses {
            let response = CONTRACT.resolve(response);
            assert!(response["description"].as_str().is_some_and(|text| !text.is_empty()), "{place} {status}");
            let json = &response["content"]["application/json"];
            assert!(json.is_null() || json["example"].is_object() || json["example"].is_null(), "{place} {status}");
        }
    }
}

#[test]
fn every_write_takes_an_idempotency_key_and_every_keyed_route_names_a_known_scope() {
    for operation in ingress::operations() {
        let Some(KeyAccess { scope, .. }) = operation.access else { continue };
        assert!(schemas::scope::is_scope(scope), "{scope}");
        let place = format!("{} {}", operation.method.as_str(), operation.path);
        let document = &CONTRACT.document()["paths"][operation.path][operation.method.as_str().to_lowercase()];
        let parameters = document["parameters"].as_array().cloned().unwrap_or_default();
        let has_key = parameters.iter().any(|parameter| parameter["$ref"] == "#/components/parameters/IdempotencyKey");
        assert_eq!(has_key, operation.is_write(), "{place}");
        assert_eq!(document["security"][0]["bearer"][0], scope, "{place}");
    }
}

#[test]
fn every_path_parameter_is_declared() {
    for (verb, path, operation) in operations() {
        let wanted: BTreeSet<&str> =
            path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        let declared: BTreeSet<&str> = parameters
            .iter()
            .map(|parameter| CONTRACT.resolve(parameter))
            .filter(|parameter| parameter["in"] == "path")
            .map(|parameter| parameter["name"].as_str().unwrap())
            .collect();
        assert_eq!(wanted, declared, "{verb} {path}");
    }
}

#[test]
fn every_reference_leads_somewhere_and_no_name_stands_for_two_schemas() {
    fn walk(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(object) => {
                if let Some(path) = object.get("$ref").and_then(Value::as_str) {
                    found.push(path.to_owned());
                }
                assert!(!object.contains_key("x-conflict"), "two schemas are named {}", object["x-conflict"]);
                object.values().for_each(|value| walk(value, found));
            }
            Value::Array(items) => items.iter().for_each(|item| walk(item, found)),
            _ => {}
        }
    }
    let mut references = Vec::new();
    walk(CONTRACT.document(), &mut references);
    assert!(references.len() > 100);
    for reference in references {
        let path = reference.strip_prefix('#').unwrap();
        assert!(CONTRACT.document().pointer(path).is_some(), "{reference} leads nowhere");
    }
}

#[test]
fn links_lead_to_operations_that_take_an_id() {
    let by_id: BTreeMap<&str, &str> =
        operations().into_iter().map(|(_, path, op)| (op["operationId"].as_str().unwrap(), path)).collect();
    for (_, _, operation) in operations() {
        for response in operation["responses"].as_object().unwrap().values() {
            for link in response["links"].as_object().into_iter().flat_map(|links| links.values()) {
                let target = link["operationId"].as_str().unwrap();
                let path = by_id.get(target).unwrap_or_else(|| panic!("no operation {target}"));
                assert!(path.contains("{id}"), "{target} takes no id");
            }
        }
    }
}

#[test]
fn every_schema_compiles_and_every_example_is_valid() {
    for (verb, path, operation) in operations() {
        let place = format!("{verb} {path}");
        let body = &operation["requestBody"]["content"]["application/json"];
        if body.is_object() {
            let verdict = CONTRACT.validate(&format!("example {place}"), &body["schema"], &body["example"]);
            assert_eq!(verdict, Ok(()), "{place}: {}", body["example"]);
        }
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let parameter = CONTRACT.resolve(parameter);
            let key = format!("parameter {place} {}", parameter["name"]);
            let default = &parameter["schema"]["default"];
            let verdict = CONTRACT.validate(&key, &parameter["schema"], default);
            assert!(default.is_null() || verdict.is_ok(), "{key}: {verdict:?}");
        }
        for (status, response) in operation["responses"].as_object().unwrap() {
            let content = &CONTRACT.resolve(response)["content"]["application/json"];
            if content["example"].is_object() {
                let verdict =
                    CONTRACT.validate(&format!("example {place} {status}"), &content["schema"], &content["example"]);
                assert_eq!(verdict, Ok(()), "{place} {status}: {}", content["example"]);
            }
        }
    }
}

/// What may be left out of a body and is never null: a template has each of these, and the properties are shown in answers, too.
const NEVER_NULL: [&str; 5] = [
    "createSequence.exit_on_event.properties",
    "updateSequenceTrigger.exit_on_event.properties",
    "updateTemplate.name",
    "updateTemplate.status",
    "updateTemplate.subject",
];

fn admits_null(schema: &'static Value) -> bool {
    let schema = CONTRACT.resolve(schema);
    match (&schema["type"], schema["anyOf"].as_array()) {
        (Value::Array(kinds), _) => kinds.iter().any(|kind| kind == "null"),
        (Value::Null, Some(alternatives)) => alternatives.iter().any(admits_null),
        (Value::Null, None) => true,
        (kind, _) => kind == "null",
    }
}

/// Fields of a schema, at any depth, that may be left out and not be null.
fn find_never_null(
    place: &str,
    schema: &'static Value,
    seen: &mut BTreeSet<*const Value>,
    found: &mut BTreeSet<String>,
) {
    let schema = CONTRACT.resolve(schema);
    if !seen.insert(std::ptr::from_ref(schema)) {
        return;
    }
    for kind in ["anyOf", "oneOf", "allOf"] {
        for alternative in schema[kind].as_array().into_iter().flatten() {
            find_never_null(place, alternative, seen, found);
        }
    }
    if schema["items"].is_object() {
        find_never_null(&format!("{place}[]"), &schema["items"], seen, found);
    }
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let place = format!("{place}.{name}");
        if !required.contains(&name.as_str()) && !admits_null(field) {
            found.insert(place.clone());
        }
        find_never_null(&place, field, seen, found);
    }
}

#[test]
fn what_may_be_left_out_of_a_body_may_be_null() {
    let mut found = BTreeSet::new();
    for (_, _, operation) in operations() {
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        let place = operation["operationId"].as_str().unwrap_or_default();
        find_never_null(place, body, &mut BTreeSet::new(), &mut found);
    }
    let never_null: BTreeSet<String> = NEVER_NULL.into_iter().map(str::to_owned).collect();
    assert_eq!(found, never_null);
}
