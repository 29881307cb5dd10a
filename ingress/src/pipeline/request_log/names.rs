//! The names that the API itself gives to fields. A path of a fault may hold others: unknown fields, a tenant's own fields, keys of merge
//! data. They are the caller's text, and an address may stand among them.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Mutex, PoisonError},
};

use serde_json::Value;

use crate::pipeline::{Operation, doc::RouteInput, schema::Schema};

/// Names of calls that stand in no schema of an operation.
const EVERYWHERE: [&str; 5] = ["id", "product_tenant_id", "engine_tenant_id", "idempotency_key", "Idempotency-Key"];

/// The names of each operation whose call was refused in this process.
static NAMES: Mutex<BTreeMap<&'static str, HashSet<String>>> = Mutex::new(BTreeMap::new());

/// The part of a path up to the first name that the API does not have.
pub(crate) fn known_part(operation: &'static Operation, path: &str) -> Option<String> {
    let mut operations = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = operations.entry(operation.doc.id).or_insert_with(|| names_of(operation));
    let is_known = |segment: &&str| {
        let (name, index) = segment.split_once('[').unwrap_or((segment, ""));
        let is_index = index.bytes().all(|byte| byte.is_ascii_digit() || b"[]".contains(&byte));
        is_index && (names.contains(name) || EVERYWHERE.contains(&name))
    };
    let known: Vec<&str> = path.split('.').take_while(is_known).collect();
    (!known.is_empty()).then(|| known.join("."))
}

fn names_of(operation: &Operation) -> HashSet<String> {
    let mut names = HashSet::new();
    for field in operation.input.parameters().into_iter().chain(operation.doc.path.into_iter().flat_map(|path| path()))
    {
        names.insert(field.name);
        add_schema(&mut names, &field.schema);
    }
    if let RouteInput::Body(body) = operation.input {
        add_schema(&mut names, &body());
    }
    names
}

fn add_schema(names: &mut HashSet<String>, schema: &Schema) {
    add_properties(names, &schema.value);
    schema.components.values().for_each(|component| add_properties(names, component));
}

fn add_properties(names: &mut HashSet<String>, schema: &Value) {
    match schema {
        Value::Object(parts) => {
            if let Some(Value::Object(properties)) = parts.get("properties") {
                names.extend(properties.keys().cloned());
            }
            parts.values().for_each(|part| add_properties(names, part));
        }
        Value::Array(parts) => parts.iter().for_each(|part| add_properties(names, part)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::routes;

    #[rstest]
    #[case("createContact", "email", Some("email"))]
    #[case("createContact", "consent.basis", Some("consent.basis"))]
    #[case("createContact", "consent.ann@example.com", Some("consent"))]
    #[case("createContact", "fields.favourite_shop", Some("fields"))]
    #[case("createContact", "ann@example.com", None)]
    #[case("createContact", "", None)]
    #[case("createContact", "email[ann]", None)]
    #[case("listContacts", "cursor", Some("cursor"))]
    #[case("createContact", "Idempotency-Key", Some("Idempotency-Key"))]
    #[case("sendTransactionalBatch", "messages", Some("messages"))]
    #[case("upsertContacts", "contacts[3].email", Some("contacts[3].email"))]
    fn a_path_is_cut_at_the_first_name_of_the_caller(
        #[case] operation: &str,
        #[case] path: &str,
        #[case] kept: Option<&str>,
    ) {
        let operation = routes::operation(operation).unwrap();
        assert_eq!(known_part(operation, path).as_deref(), kept);
    }
}
