//! The body of an event, and how rules name events.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use templates::DataLimits;

use crate::{
    api::contacts::{ContactNames, EXTERNAL_ID_MAX_CHARS, NamedContact},
    pipeline::{
        Faults, GivenTime, Id, OneOrMany,
        error::ApiError,
        one_or_many,
        types::{Email, Name, either},
        validate::{EVENT_PATTERN, SOURCE_EVENT_ID_MAX},
    },
};

/// Events of one request.
const EVENTS_MAX: usize = schemas::ids::BATCH_MAX;
const NAME_MAX_CHARS: usize = 100;
/// What `properties` may hold: bytes of keys and texts, values, depth.
const PROPERTIES: DataLimits = DataLimits { bytes: 16 * 1024, values: 200, depth: 5 };
/// Properties that a trigger or an exit compares.
const TERMS_MAX: usize = 5;
const TERM_MAX_CHARS: usize = 500;

/// At most 16 KB, 200 values and 5 levels.
#[derive(Debug, Default, Deserialize, JsonSchema)]
struct EventProperties(Map<String, Value>);

one_or_many! {
    /// One event, or many under `events`.
    #[schemars(transform = either(&[
        (&["name", "email"], &["properties", "occurred_at", "source_event_id"]),
        (&["name", "external_id"], &["properties", "occurred_at", "source_event_id"]),
        (&["name", "contact_id"], &["properties", "occurred_at", "source_event_id"]),
        (&["events"], &[]),
    ]))]
    struct RecordEvents { events: ["event"; EVENTS_MAX] }

    /// One event of many.
    #[schemars(transform = either(&[
        (&["name", "email"], &["properties", "occurred_at", "source_event_id"]),
        (&["name", "external_id"], &["properties", "occurred_at", "source_event_id"]),
        (&["name", "contact_id"], &["properties", "occurred_at", "source_event_id"]),
    ]))]
    struct EventItem {
        /// What happened, in the product's words.
        #[schemars(regex(pattern = EVENT_PATTERN))]
        name: Option<String>,
        contact_id: Option<Id>,
        /// Instead of contact_id.
        #[schemars(with = "Option<Email>")]
        email: Option<String>,
        /// Instead of contact_id: the contact's id in the product.
        #[schemars(with = "Option<Name<EXTERNAL_ID_MAX_CHARS>>")]
        external_id: Option<String>,
        properties: Option<EventProperties>,
        /// Default: now. Not in the future.
        occurred_at: Option<GivenTime>,
        /// The product's own id of the event: recorded once.
        #[schemars(length(min = 1, max = SOURCE_EVENT_ID_MAX))]
        source_event_id: Option<String>,
    }
}

#[derive(Debug)]
pub(super) struct NewProductEvent {
    pub(super) name: String,
    pub(super) contact: NamedContact,
    pub(super) properties: Value,
    pub(super) occurred_at: Option<DateTime<Utc>>,
    pub(super) source_event_id: Option<String>,
}

impl RecordEvents {
    /// Checks the form of all events; whether it is one alone.
    pub(super) fn validate(self) -> Result<(Vec<NewProductEvent>, bool), ApiError> {
        let mut faults = Faults::default();
        let now = Utc::now();
        let items = match self.split()? {
            OneOrMany::One(event) => {
                let event = event.check("", now, &mut faults);
                faults.finish()?;
                return Ok((vec![event.ok_or_else(ApiError::internal)?], true));
            }
            OneOrMany::Many(items) => items,
        };
        let fits = (1..=EVENTS_MAX).contains(&items.len());
        faults.require(fits, "events", "out_of_range", &format!("must have 1 to {EVENTS_MAX} items"));
        let numbered = items.into_iter().take(EVENTS_MAX).enumerate();
        let events =
            numbered.filter_map(|(at, item)| item.check(&format!("events[{at}]."), now, &mut faults)).collect();
        faults.finish()?;
        Ok((events, false))
    }
}

impl EventItem {
    fn check(self, prefix: &str, now: DateTime<Utc>, faults: &mut Faults) -> Option<NewProductEvent> {
        let at = |name: &str| format!("{prefix}{name}");
        let name = faults.required(&at("name"), self.name);
        if let Some(name) = &name {
            check_name(&at("name"), name, faults);
        }
        let names = ContactNames { contact_id: self.contact_id, email: self.email, external_id: self.external_id };
        let contact = names.check(prefix, faults);
        let EventProperties(properties) = self.properties.unwrap_or_default();
        if let Err(fault) = PROPERTIES.check(&properties) {
            faults.add(format!("{}{}", at("properties"), fault.path), fault.code, fault.detail);
        }
        if let Some(GivenTime(moment)) = self.occurred_at {
            faults.happened(&at("occurred_at"), moment, now);
        }
        if let Some(id) = &self.source_event_id {
            faults.title(&at("source_event_id"), id, SOURCE_EVENT_ID_MAX);
        }
        Some(NewProductEvent {
            name: name?,
            contact: contact?,
            properties: Value::Object(properties),
            occurred_at: self.occurred_at.map(|moment| moment.0),
            source_event_id: self.source_event_id,
        })
    }
}

fn check_name(path: &str, name: &str, faults: &mut Faults) {
    let detail = format!("must be 1 to {NAME_MAX_CHARS} of a-z, 0-9, _ and ., beginning with a letter");
    faults.require(segments::is_event_name(name), path, "invalid", &detail);
}

/// How a sequence names events: by name, and by properties they have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProductEventTerms {
    #[schemars(regex(pattern = EVENT_PATTERN))]
    pub(crate) event: String,
    /// Properties that the event has with exactly these values: texts, numbers, true or false.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(extend("maxProperties" = TERMS_MAX))]
    pub(crate) properties: Map<String, Value>,
}

impl ProductEventTerms {
    pub(crate) fn check(&self, path: &str, faults: &mut Faults) {
        check_name(&format!("{path}.event"), &self.event, faults);
        let at = format!("{path}.properties");
        let fits = self.properties.len() <= TERMS_MAX;
        faults.require(fits, &at, "too_many", &format!("may have at most {TERMS_MAX} properties"));
        for (key, value) in self.properties.iter().take(TERMS_MAX) {
            let at = format!("{at}.{}", key.chars().take(NAME_MAX_CHARS).collect::<String>());
            match value {
                Value::Bool(_) | Value::Number(_) => {}
                Value::String(text) => faults.optional(&at, Some(text), TERM_MAX_CHARS),
                _ => faults.add(at, "wrong_type", "must be a text, a number, true or false"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn read(body: Value) -> Result<(Vec<NewProductEvent>, bool), ApiError> {
        serde_json::from_value::<RecordEvents>(body).unwrap().validate()
    }

    #[rstest]
    #[case(json!({"email": "ann@example.com"}), "name", "required")]
    #[case(json!({"name": "Trial started", "email": "ann@example.com"}), "name", "invalid")]
    #[case(json!({"name": "t"}), "email", "required")]
    #[case(json!({"name": "t", "email": "ann"}), "email", "missing_at")]
    #[case(json!({"name": "t", "email": "ann@example.com", "contact_id": schemas::new_id()}), "email", "ambiguous")]
    #[case(json!({"name": "t", "email": "ann@example.com", "occurred_at": "2999-01-01T00:00:00Z"}), "occurred_at", "out_of_range")]
    #[case(json!({"name": "t", "email": "ann@example.com", "source_event_id": " "}), "source_event_id", "empty")]
    #[case(json!({"name": "t", "email": "ann@example.com", "properties": {"a": "x".repeat(17_000)}}), "properties", "too_long")]
    #[case(json!({"events": []}), "events", "out_of_range")]
    #[case(json!({"events": [{"name": "t", "email": "ann@example.com"}, {"name": "t"}]}), "events[1].email", "required")]
    #[case(json!({"events": [{"name": "t", "email": "ann@example.com"}], "name": "t"}), "events", "ambiguous")]
    fn a_fault_of_an_event_is_named(#[case] body: Value, #[case] path: &str, #[case] code: &str) {
        let error = read(body).unwrap_err();
        let found: Vec<_> = error.fields.iter().map(|fault| (fault.path.as_str(), fault.code.as_ref())).collect();
        assert_eq!(found, [(path, code)]);
    }

    #[test]
    fn terms_compare_scalars_only() {
        let check = |properties: Value| {
            let mut faults = Faults::default();
            let terms = json!({"event": "paid", "properties": properties});
            serde_json::from_value::<ProductEventTerms>(terms).unwrap().check("t", &mut faults);
            faults.finish().map_err(|error| error.fields[0].path.clone())
        };
        assert_eq!(check(json!({"plan": "pro", "seats": 3, "new": true})), Ok(()));
        assert_eq!(check(json!({"plan": {"a": 1}})), Err("t.properties.plan".to_owned()));
        assert_eq!(check(json!({"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1})), Err("t.properties".to_owned()));
    }
}
