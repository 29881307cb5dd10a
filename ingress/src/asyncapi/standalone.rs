//! Schemas that refer to named ones: taken out of one document, put into another.

use std::collections::BTreeMap;

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
            if let Some(name) =
                object.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix(COMPONENTS))
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

fn turn(value: &mut Value, from: &str, to: &str) {
    match value {
        Value::Object(object) => {
            if let Some(Value::String(path)) = object.get_mut("$ref")
                && let Some(name) = path.strip_prefix(from)
            {
                *path = format!("{to}{name}");
            }
            object.values_mut().for_each(|value| turn(value, from, to));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| turn(item, from, to)),
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
}
