//! Moves schemas between documents: resolves references to named schemas, and makes them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// The prefix of references to named schemas in OpenAPI and AsyncAPI documents.
pub(super) const COMPONENTS: &str = "#/components/schemas/";
/// The prefix of such references in a self-contained schema.
const DEFINITIONS: &str = "#/$defs/";

/// A schema with everything it refers to in `$defs`, from the named schemas of a document.
pub(super) fn self_contained(mut schema: Value, named: &Value) -> Value {
    let mut definitions = BTreeMap::new();
    gather(&schema, named, &mut definitions);
    replace_prefix(&mut schema, COMPONENTS, DEFINITIONS);
    if !definitions.is_empty() {
        schema["$defs"] = definitions
            .into_iter()
            .map(|(name, mut value)| {
                replace_prefix(&mut value, COMPONENTS, DEFINITIONS);
                (name, value)
            })
            .collect::<Map<String, Value>>()
            .into();
    }
    schema
}

/// A self-contained schema with references to named schemas of a document, and those schemas.
pub(super) fn with_references(mut schema: Value) -> (Value, BTreeMap<String, Value>) {
    let definitions = schema.as_object_mut().and_then(|object| {
        object.remove("$schema");
        object.remove("$defs")
    });
    replace_prefix(&mut schema, DEFINITIONS, COMPONENTS);
    let mut named = BTreeMap::new();
    if let Some(Value::Object(definitions)) = definitions {
        for (name, mut value) in definitions {
            replace_prefix(&mut value, DEFINITIONS, COMPONENTS);
            named.insert(name, value);
        }
    }
    (schema, named)
}

fn gather(value: &Value, named: &Value, found: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(object) => {
            if let Some(name) = object.get("$ref").and_then(Value::as_str).and_then(|path| named_in(path, COMPONENTS))
                && !found.contains_key(name)
            {
                found.insert(name.to_owned(), named[name].clone());
                gather(&named[name], named, found);
            }
            object.values().for_each(|value| gather(value, named, found));
        }
        Value::Array(items) => items.iter().for_each(|item| gather(item, named, found)),
        _ => {}
    }
}

/// The name of the schema that a reference leads to, or into.
fn named_in<'a>(path: &'a str, prefix: &str) -> Option<&'a str> {
    path.strip_prefix(prefix)?.split('/').next()
}

fn replace_prefix(value: &mut Value, from: &str, to: &str) {
    redirect(value, &|path| path.strip_prefix(from).map(|name| format!("{to}{name}")));
}

/// A document without the schemas that it shares with another: it refers to those in `file` beside it.
pub(super) fn without_shared_schemas(mut document: Value, file: &str, others: &Value) -> Value {
    let mut left_out = BTreeSet::new();
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        schemas.retain(|name, schema| {
            let is_shared = others.get(name).is_some_and(|other| other == schema);
            if is_shared {
                left_out.insert(name.clone());
            }
            !is_shared
        });
    }
    redirect(&mut document, &|path| left_out.contains(named_in(path, COMPONENTS)?).then(|| format!("{file}{path}")));
    document
}

/// A document without the schemas that nothing in it refers to.
pub(super) fn without_unused_schemas(mut document: Value) -> Value {
    let named = document["components"]["schemas"].take();
    let mut used = BTreeMap::new();
    gather(&document, &named, &mut used);
    document["components"]["schemas"] = used.into_iter().collect::<Map<String, Value>>().into();
    document
}

/// Changes every reference for which there is another.
fn redirect(value: &mut Value, other: &impl Fn(&str) -> Option<String>) {
    match value {
        Value::Object(object) => {
            if let Some(Value::String(path)) = object.get_mut("$ref")
                && let Some(new) = other(path)
            {
                *path = new;
            }
            object.values_mut().for_each(|value| redirect(value, other));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| redirect(item, other)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_self_contained_schema_refers_again_to_the_same() {
        let named = json!({
            "Rule": {"anyOf": [{"type": "string"}, {"$ref": "#/components/schemas/Rule"}, {"$ref": "#/components/schemas/Leaf"}]},
            "Leaf": {"type": "integer"}, "Other": {},
        });
        let schema = json!({"type": "array", "items": {"$ref": "#/components/schemas/Rule"}});
        let alone = self_contained(schema.clone(), &named);
        assert_eq!(alone["items"]["$ref"], "#/$defs/Rule");
        assert_eq!(alone["$defs"]["Rule"]["anyOf"][2]["$ref"], "#/$defs/Leaf");
        let (again, found) = with_references(alone);
        assert_eq!(again, schema);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["Leaf", "Rule"]);
        assert_eq!(found["Rule"], named["Rule"]);
    }

    #[test]
    fn a_document_keeps_the_schemas_that_it_refers_to() {
        let refer = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
        let schemas =
            json!({"Used": refer("Inner/items"), "Inner": {"items": refer("Used")}, "Unused": refer("Unused")});
        let made = without_unused_schemas(json!({"a": [refer("Used")], "components": {"schemas": schemas}}));
        let kept = json!({"Used": schemas["Used"], "Inner": schemas["Inner"]});
        assert_eq!(made, json!({"a": [refer("Used")], "components": {"schemas": kept}}));
    }

    #[test]
    fn a_document_refers_to_the_schemas_that_it_shares() {
        let others = json!({"Same": {"type": "string"}, "Other": {"type": "string"}});
        let refer = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
        let schemas = json!({"Same": {"type": "string"}, "Other": {"type": "integer"}, "Own": refer("Same/type")});
        let made = without_shared_schemas(
            json!({"a": refer("Same"), "b": refer("Other"), "components": {"schemas": schemas}}),
            "o.json",
            &others,
        );
        assert_eq!(made["a"]["$ref"], "o.json#/components/schemas/Same");
        assert_eq!(made["b"], refer("Other"));
        let own = json!({"Other": {"type": "integer"}, "Own": {"$ref": "o.json#/components/schemas/Same/type"}});
        assert_eq!(made["components"]["schemas"], own);
    }
}
