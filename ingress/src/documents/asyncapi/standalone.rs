//! Schemas that refer to named ones: taken out of one document, put into another.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// Where named schemas stand in OpenAPI and AsyncAPI documents.
pub(super) const COMPONENTS: &str = "#/components/schemas/";
/// Where they stand in a schema of its own.
const DEFINITIONS: &str = "#/$defs/";

/// A schema with everything it refers to in `$defs`, from the named schemas of a document.
pub(super) fn standing_alone(mut schema: Value, named: &Value) -> Value {
    let mut definitions = BTreeMap::new();
    gather(&schema, named, &mut definitions);
    turn(&mut schema, COMPONENTS, DEFINITIONS);
    if !definitions.is_empty() {
        schema["$defs"] = definitions
            .into_iter()
            .map(|(name, mut value)| {
                turn(&mut value, COMPONENTS, DEFINITIONS);
                (name, value)
            })
            .collect::<Map<String, Value>>()
            .into();
    }
    schema
}

/// A schema that stood alone, referring to named schemas of a document, and those.
pub(super) fn referring(mut schema: Value) -> (Value, BTreeMap<String, Value>) {
    let definitions = schema.as_object_mut().and_then(|object| {
        object.remove("$schema");
        object.remove("$defs")
    });
    turn(&mut schema, DEFINITIONS, COMPONENTS);
    let mut named = BTreeMap::new();
    if let Some(Value::Object(definitions)) = definitions {
        for (name, mut value) in definitions {
            turn(&mut value, DEFINITIONS, COMPONENTS);
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

fn turn(value: &mut Value, from: &str, to: &str) {
    redirect(value, &|path| path.strip_prefix(from).map(|name| format!("{to}{name}")));
}

/// A document without the schemas that another has, too: it refers to those of the other, which stands beside it under `file`.
pub(super) fn leaning_on(mut document: Value, file: &str, others: &Value) -> Value {
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
    fn what_stood_alone_refers_again_to_the_same() {
        let named = json!({
            "Rule": {"anyOf": [{"type": "string"}, {"$ref": "#/components/schemas/Rule"}, {"$ref": "#/components/schemas/Leaf"}]},
            "Leaf": {"type": "integer"}, "Other": {},
        });
        let schema = json!({"type": "array", "items": {"$ref": "#/components/schemas/Rule"}});
        let alone = standing_alone(schema.clone(), &named);
        assert_eq!(alone["items"]["$ref"], "#/$defs/Rule");
        assert_eq!(alone["$defs"]["Rule"]["anyOf"][2]["$ref"], "#/$defs/Leaf");
        let (again, found) = referring(alone);
        assert_eq!(again, schema);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["Leaf", "Rule"]);
        assert_eq!(found["Rule"], named["Rule"]);
    }

    #[test]
    fn a_document_leans_on_the_schemas_that_another_has() {
        let others = json!({"Same": {"type": "string"}, "Other": {"type": "string"}});
        let refer = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
        let schemas = json!({"Same": {"type": "string"}, "Other": {"type": "integer"}, "Own": refer("Same/type")});
        let made = leaning_on(
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
