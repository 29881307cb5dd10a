//! Examples of values, made from their schemas.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::pipeline::doc::{AT, ID};

/// Text that says something, by the name of its field.
const TEXTS: [(&str, &str); 13] = [
    ("email", "ann@example.com"),
    ("contact_email", "ann@example.com"),
    ("owner_email", "owner@acme.example"),
    ("first_name", "Ann"),
    ("last_name", "Lee"),
    ("name", "Spring"),
    ("subject", "Hello {{ first_name }}"),
    ("domain", "acme.example"),
    ("url", "https://app.acme.example/hooks/postrider"),
    ("timezone", "Europe/Paris"),
    ("locale", "fr"),
    ("signing_secret", "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="),
    ("product_tenant_id", "tenant-1"),
];

/// An example of a schema, which refers to named ones.
pub(super) fn example_of(schema: &Value, named: &BTreeMap<String, Value>) -> Value {
    let mut maker = ExampleMaker { named, within: Vec::new() };
    maker.value("", schema).unwrap_or(Value::Null)
}

/// An example of one parameter, which refers to nothing.
pub(crate) fn parameter_example(name: &str, schema: &Value) -> Value {
    ExampleMaker { named: &BTreeMap::new(), within: Vec::new() }.value(name, schema).unwrap_or(Value::Null)
}

struct ExampleMaker<'a> {
    named: &'a BTreeMap<String, Value>,
    /// The named schemas around the value, so that one that holds itself has an end.
    within: Vec<&'a str>,
}

impl<'a> ExampleMaker<'a> {
    /// `None`: a value would hold itself for ever.
    fn value(&mut self, name: &str, schema: &'a Value) -> Option<Value> {
        if let Some(reference) = schema["$ref"].as_str() {
            let (component, referred) = self.named.get_key_value(reference.rsplit('/').next()?)?;
            if self.within.contains(&component.as_str()) {
                return None;
            }
            self.within.push(component);
            let value = self.value(name, referred);
            self.within.pop();
            return value;
        }
        if let Some(only) = schema.get("const") {
            return Some(only.clone());
        }
        if let Some(words) = schema["enum"].as_array() {
            return words.iter().find(|word| !word.is_null()).cloned();
        }
        for choice in ["anyOf", "oneOf"] {
            if let Some(choices) = schema[choice].as_array() {
                let mut choices = choices.iter().filter(|choice| choice["type"] != "null");
                return choices.find_map(|choice| self.value(name, choice));
            }
        }
        let kind = match &schema["type"] {
            Value::Array(kinds) => kinds.iter().find_map(|kind| kind.as_str().filter(|kind| *kind != "null")),
            kind => kind.as_str(),
        };
        match kind {
            Some("object") | None => self.object(schema),
            // A list of what holds the list is empty.
            Some("array") => match self.value(name, &schema["items"]) {
                None if schema["minItems"].as_u64().is_some_and(|least| least > 0) => None,
                item => Some(item.into_iter().collect()),
            },
            Some("string") => Some(text(name, schema)),
            Some("boolean") => Some(json!(true)),
            Some("integer" | "number") => {
                Some(schema.get("minimum").filter(|least| **least != 0).cloned().unwrap_or(json!(1)))
            }
            Some(_) => Some(Value::Null),
        }
    }

    fn object(&mut self, schema: &'a Value) -> Option<Value> {
        let mut object = Map::new();
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            match self.value(name, field) {
                Some(value) => drop(object.insert(name.clone(), value)),
                None if schema["required"].as_array().is_some_and(|names| names.iter().any(|must| must == name)) => {
                    return None;
                }
                None => {}
            }
        }
        if let (true, Some(values @ Value::Object(_))) = (object.is_empty(), schema.get("additionalProperties")) {
            let key = schema["propertyNames"]["enum"][0].as_str().unwrap_or("key");
            object.extend(self.value(key, values).map(|value| (key.to_owned(), value)));
        }
        Some(Value::Object(object))
    }
}

fn text(name: &str, schema: &Value) -> Value {
    match schema["format"].as_str() {
        Some("uuid") => json!(ID),
        Some("date-time") => json!(AT),
        Some("date") => json!(&AT[..10]),
        Some("email") => json!("ann@example.com"),
        Some("uri") => json!("https://mail.example.com/mcp"),
        _ => json!(TEXTS.iter().find(|(known, _)| *known == name).map_or(name, |(_, text)| *text)),
    }
}
