//! The contracts as documents: every message of the bus with its JSON Schema (2020-12) and examples, made from the types
//! themselves. The files in `schemas/json` and `schemas/asyncapi.json` are written from this; what callers send (the bodies of the
//! API) is added by the ingress, which knows it.

mod events;
mod inner;

use std::collections::BTreeMap;

use schemars::{JsonSchema, generate::SchemaSettings};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The width of a printed document, in characters.
const WIDTH: usize = 120;
const INDENT: &str = "  ";

/// The writer and the reader of a message: the changes that are allowed within a version follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Written by callers, read by the engine: a message that was accepted must stay acceptable.
    Incoming,
    /// Written by the engine, read by callers: a field that was there must stay there.
    Outgoing,
    /// Written and read by the engine, also on the bus during an upgrade: messages of the previous version must stay readable.
    Internal,
}

/// One kind of message.
#[derive(Debug, Clone)]
pub struct Described {
    /// Its name, such as `mail.v1.event.email.sent`.
    pub name: String,
    /// A name for people.
    pub title: String,
    /// What it says, in a line.
    pub summary: String,
    /// The side that writes it and the side that reads it.
    pub side: Side,
    /// The subject, with `{…}` for tokens that vary.
    pub address: String,
    /// The stream it is kept in; core NATS without.
    pub stream: Option<&'static str>,
    /// The headers it carries, beside those of every message.
    pub headers: &'static [Header],
    /// Its schema, standing alone: what it refers to is in `$defs`.
    pub schema: Value,
    /// Examples by name.
    pub examples: Vec<(String, Value)>,
    /// Reads one as today's code does.
    pub read: fn(&[u8]) -> Result<(), serde_json::Error>,
}

/// A header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub about: &'static str,
    /// Whether each message has it.
    pub required: bool,
}

/// Every message that callers do not publish: internal messages and events.
#[must_use]
pub fn all() -> Vec<Described> {
    inner::all().into_iter().chain(events::all()).collect()
}

/// The schema of a type, standing alone.
fn schema_of<T: JsonSchema>(side: Side) -> Value {
    let settings = SchemaSettings::draft2020_12();
    let settings = match side {
        Side::Outgoing => settings.for_serialize(),
        Side::Incoming | Side::Internal => settings.for_deserialize(),
    };
    normalized(settings.into_generator().into_root_schema_for::<T>().to_value())
}

fn reads<T: DeserializeOwned>(bytes: &[u8]) -> Result<(), serde_json::Error> {
    serde_json::from_slice::<T>(bytes).map(drop)
}

/// Keys in order, whichever crates are built along: one of them may switch on serde_json's `preserve_order` for all.
#[must_use]
pub fn sorted(value: Value) -> Value {
    match value {
        Value::Object(object) => {
            let ordered: BTreeMap<String, Value> =
                object.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            Value::Object(ordered.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

/// Descriptions without the links of the code's documentation, and no widths of Rust's integers: their bounds say it.
#[must_use]
pub fn normalized(mut schema: Value) -> Value {
    normalize(&mut schema);
    sorted(schema)
}

fn normalize(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if let Some(Value::String(text)) = object.get_mut("description") {
                *text = plain(text);
            }
            if object.get("format").and_then(Value::as_str).is_some_and(is_width) {
                object.remove("format");
            }
            object.values_mut().for_each(normalize);
        }
        Value::Array(items) => items.iter_mut().for_each(normalize),
        _ => {}
    }
}

fn is_width(format: &str) -> bool {
    format.strip_prefix("uint").or_else(|| format.strip_prefix("int")).is_some_and(|bits| bits.parse::<u8>().is_ok())
}

/// `[`crate::SendId::of`]` is `SendId::of` to who does not read the code; lines are those of a screen, not of the source.
fn plain(text: &str) -> String {
    let text = text.replace("[`crate::", "`").replace("[`", "`").replace("`]", "`");
    text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect::<Vec<_>>().join("\n\n")
}

/// A document as it is committed, printed and served: indented, with a line break at its end. A value that fits on a line stands on
/// one, so a reference, a list of words and a small schema take a line each.
#[must_use]
pub fn printed(document: &Value) -> String {
    let mut out = String::new();
    print(&mut out, document, "", 0);
    out.push('\n');
    out
}

/// Writes a value behind `before` characters of its line; `indent` is that of the line.
fn print(out: &mut String, value: &Value, indent: &str, before: usize) {
    let line = value.to_string();
    let (open, close, entries): (char, char, Vec<(String, &Value)>) = match value {
        // A comma may follow.
        _ if before + line.chars().count() < WIDTH => return out.push_str(&line),
        Value::Array(items) if !items.is_empty() => {
            ('[', ']', items.iter().map(|item| (String::new(), item)).collect())
        }
        Value::Object(fields) if !fields.is_empty() => {
            let named = fields.iter().map(|(name, field)| (format!("{}: ", Value::from(name.as_str())), field));
            ('{', '}', named.collect())
        }
        _ => return out.push_str(&line),
    };
    let inner = format!("{indent}{INDENT}");
    let mut separator = open;
    for (label, entry) in entries {
        out.push_str(&format!("{separator}\n{inner}{label}"));
        print(out, entry, &inner, inner.len() + label.chars().count());
        separator = ',';
    }
    out.push_str(&format!("\n{indent}{close}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventType;
    use serde_json::json;

    #[test]
    fn every_message_has_a_name_of_its_own_and_an_example_that_is_read() {
        let mut names = std::collections::BTreeSet::new();
        for message in all() {
            assert!(names.insert(message.name.clone()), "{} twice", message.name);
            assert!(!message.examples.is_empty(), "{} has no example", message.name);
            for (name, example) in &message.examples {
                let read = (message.read)(example.to_string().as_bytes());
                assert!(read.is_ok(), "{} {name}: {read:?}", message.name);
            }
        }
        for event in EventType::ALL.iter().filter(|event| **event != EventType::WebhookTest) {
            assert!(names.contains(&format!("mail.v1.event.{event}")), "{event} is not described");
        }
    }

    #[test]
    fn a_schema_stands_alone_and_speaks_to_people() {
        for message in all() {
            let text = message.schema.to_string();
            assert!(!text.contains("[`"), "{} has a link of the code's documentation: {text}", message.name);
            assert_eq!(message.schema["$schema"], "https://json-schema.org/draft/2020-12/schema", "{}", message.name);
        }
    }

    #[test]
    fn a_description_is_for_people_and_an_integer_has_bounds_only() {
        let made = normalized(
            json!({"description": "As [`crate::SendId::of`]\nsays.\n\nMore.", "format": "uint16", "maximum": 1}),
        );
        assert_eq!(made, json!({"description": "As `SendId::of` says.\n\nMore.", "maximum": 1}));
        assert_eq!(normalized(json!({"format": "uuid"})), json!({"format": "uuid"}));
    }

    #[test]
    fn a_printed_document_is_read_back_and_keeps_to_its_width() {
        let words: Vec<String> = (0..40).map(|number| format!("word{number}")).collect();
        let document = json!({"small": {"$ref": "#/a"}, "long": {"words": words, "none": [], "text": "\"\n\u{e9}"}});
        let printed = printed(&document);
        assert_eq!(serde_json::from_str::<Value>(&printed).unwrap(), document);
        assert!(printed.lines().all(|line| line.chars().count() <= WIDTH) && printed.ends_with("}\n"), "{printed}");
        assert!(printed.contains("  \"small\": {\"$ref\":\"#/a\"}"), "{printed}");
    }
}
