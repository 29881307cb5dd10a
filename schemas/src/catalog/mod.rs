//! The contracts as documents: every message of the bus with its JSON Schema (2020-12) and examples, made from the types
//! themselves. The files in `schemas/json` and `schemas/asyncapi.json` are written from this; what callers send (the bodies of the
//! API) is added by the ingress, which knows it.

mod events;
mod inner;
mod normalize;
mod print;

use schemars::{JsonSchema, generate::SchemaSettings};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use normalize::{normalized, sorted};
pub use print::printed;

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
    ///
    /// # Errors
    /// When today's code does not understand it.
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
    normalize::normalized(settings.into_generator().into_root_schema_for::<T>().to_value())
}

fn reads<T: DeserializeOwned>(bytes: &[u8]) -> Result<(), serde_json::Error> {
    serde_json::from_slice::<T>(bytes).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventType;

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
}
