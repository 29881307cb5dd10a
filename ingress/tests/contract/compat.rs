//! Whether a schema changed in a way that somebody would notice who relied on it.

use std::collections::BTreeSet;

use schemas::catalog::Side;
use serde_json::Value;

/// What others would not survive, in words. `before` and `after` are documents and a schema of each.
pub fn compare(side: Side, before: (&Value, &Value), after: (&Value, &Value)) -> Vec<String> {
    let mut compared = Compared { side, before: before.0, after: after.0, seen: BTreeSet::new(), faults: Vec::new() };
    compared.schemas("", before.1, after.1);
    compared.faults
}

struct Compared<'a> {
    side: Side,
    before: &'a Value,
    after: &'a Value,
    /// References already followed: schemas may contain themselves.
    seen: BTreeSet<(String, String)>,
    faults: Vec<String>,
}

/// Bounds that take less when they go down, and those that take less when they go up.
const UPPER: [&str; 4] = ["maxLength", "maximum", "maxItems", "maxProperties"];
const LOWER: [&str; 4] = ["minLength", "minimum", "minItems", "minProperties"];

impl<'a> Compared<'a> {
    /// Whether what was taken must still be taken.
    fn is_read(&self) -> bool {
        matches!(self.side, Side::Incoming | Side::Internal)
    }

    fn fault(&mut self, path: &str, what: &str) {
        let place = if path.is_empty() { "the whole" } else { path };
        self.faults.push(format!("{place} {what}"));
    }

    fn schemas(&mut self, path: &str, before: &'a Value, after: &'a Value) {
        let names = (reference(before), reference(after));
        if names.0.is_some() || names.1.is_some() {
            let key = (names.0.unwrap_or_default().to_owned(), names.1.unwrap_or_default().to_owned());
            if names.0.is_some() && names.1.is_some() && !self.seen.insert(key) {
                return;
            }
            let (before, after) = (resolve(self.before, before), resolve(self.after, after));
            return self.schemas(path, before, after);
        }
        if !is_choice(before) && is_choice(after) {
            // One shape became one of several; a shape or null is two.
            let candidates = alternatives(after);
            let nullable = before["type"].as_array().filter(|types| types.len() == 2 && types[1] == "null");
            let survives = match nullable {
                Some(types) => {
                    self.survives(path, &not_null(before, &types[0]), &candidates)
                        && candidates.iter().any(|one| one["type"] == "null")
                }
                None => self.survives(path, before, &candidates),
            };
            if !survives {
                self.fault(path, "is none of the alternatives there are now");
            }
            return;
        }
        self.types(path, before, after);
        self.words(path, before, after);
        if self.is_read() {
            self.limits(path, before, after);
        }
        self.fields(path, before, after);
        self.choices(path, before, after);
        for inner in ["items", "additionalProperties"] {
            if before[inner].is_object() && after[inner].is_object() {
                self.schemas(&format!("{path}[]"), &before[inner], &after[inner]);
            }
        }
    }

    fn types(&mut self, path: &str, before: &Value, after: &Value) {
        let (old, new) = (words(&before["type"]), words(&after["type"]));
        if old == new || (old.is_empty() && !self.is_read()) || (new.is_empty() && self.is_read()) {
            return;
        }
        let fits = match self.side {
            Side::Incoming => old.is_subset(&new),
            Side::Outgoing => new.is_subset(&old),
            Side::Internal => false,
        };
        if !fits {
            self.fault(path, &format!("is of another type: {old:?} became {new:?}"));
        }
    }

    fn words(&mut self, path: &str, before: &Value, after: &Value) {
        let (old, new) = (words(&before["enum"]), words(&after["enum"]));
        let gone: Vec<&String> = old.difference(&new).collect();
        if !gone.is_empty() && !new.is_empty() {
            self.fault(path, &format!("lost the words {gone:?}"));
        }
        if !before["const"].is_null() && !after["const"].is_null() && before["const"] != after["const"] {
            self.fault(path, "is another constant");
        }
    }

    fn limits(&mut self, path: &str, before: &Value, after: &Value) {
        for name in UPPER.into_iter().chain(LOWER) {
            let tighter = match (before[name].as_f64(), after[name].as_f64()) {
                (Some(old), Some(new)) => {
                    if UPPER.contains(&name) {
                        new < old
                    } else {
                        new > old
                    }
                }
                (None, Some(_)) => true,
                _ => false,
            };
            if tighter {
                self.fault(path, &format!("takes less: {name} {} became {}", before[name], after[name]));
            }
        }
        for name in ["pattern", "format"] {
            if !after[name].is_null() && before[name] != after[name] {
                self.fault(path, &format!("takes less: {name} became {}", after[name]));
            }
        }
        if before["additionalProperties"] != false && after["additionalProperties"] == false {
            self.fault(path, "takes no further fields any more");
        }
    }

    fn fields(&mut self, path: &str, before: &'a Value, after: &'a Value) {
        let (old, new) = (words(&before["required"]), words(&after["required"]));
        for (name, schema) in before["properties"].as_object().into_iter().flatten() {
            match after["properties"].get(name) {
                Some(found) => self.schemas(&format!("{path}.{name}"), schema, found),
                None => self.fault(&format!("{path}.{name}"), "is gone"),
            }
        }
        if self.is_read() {
            for name in new.difference(&old) {
                self.fault(&format!("{path}.{name}"), "is required now, and was not");
            }
        }
        if self.side == Side::Outgoing {
            for name in old.difference(&new) {
                self.fault(&format!("{path}.{name}"), "was always there, and is not any more");
            }
        }
    }

    /// Whether one of these is a shape that may stand for it.
    fn survives<'b>(&self, path: &str, before: &'b Value, candidates: &[&'b Value]) -> bool
    where
        'a: 'b,
    {
        candidates.iter().any(|candidate| {
            let seen = self.seen.clone();
            let mut tried =
                Compared { side: self.side, before: self.before, after: self.after, seen, faults: Vec::new() };
            tried.schemas(path, before, candidate);
            tried.faults.is_empty()
        })
    }

    /// Each alternative there was must still be one.
    fn choices(&mut self, path: &str, before: &'a Value, after: &'a Value) {
        for choice in ["anyOf", "oneOf"] {
            let Some(old) = before[choice].as_array() else { continue };
            let new = alternatives(after);
            for (place, alternative) in old.iter().enumerate() {
                if !self.survives(path, alternative, &new) {
                    self.fault(path, &format!("lost or changed its {}. alternative", place + 1));
                }
            }
        }
        if let (Some(old), Some(new)) = (before["allOf"].as_array(), after["allOf"].as_array()) {
            for (old, new) in old.iter().zip(new) {
                self.schemas(path, old, new);
            }
        }
    }
}

/// A schema that admits null, without null.
fn not_null(schema: &Value, kind: &Value) -> Value {
    let mut schema = schema.clone();
    schema["type"] = kind.clone();
    if let Some(words) = schema["enum"].as_array_mut() {
        words.retain(|word| !word.is_null());
    }
    if schema["enum"].is_null() {
        schema.as_object_mut().unwrap().remove("enum");
    }
    schema
}

fn is_choice(schema: &Value) -> bool {
    schema["anyOf"].is_array() || schema["oneOf"].is_array()
}

/// The alternatives of a choice; of anything else itself.
fn alternatives(schema: &Value) -> Vec<&Value> {
    let listed = schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array());
    listed.map_or_else(|| vec![schema], |listed| listed.iter().collect())
}

fn reference(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()
}

fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    match reference(schema) {
        // Else nothing would be compared with nothing.
        Some(path) => root.pointer(path.trim_start_matches('#')).unwrap_or_else(|| panic!("{path} leads nowhere")),
        None => schema,
    }
}

/// A word, or a list of them, as a set.
fn words(value: &Value) -> BTreeSet<String> {
    match value {
        Value::Null => BTreeSet::new(),
        Value::Array(items) => items.iter().map(text).collect(),
        one => BTreeSet::from([text(one)]),
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Compares schemas that are documents of their own.
    fn breaks(side: Side, before: &Value, after: &Value) -> Vec<String> {
        compare(side, (before, before), (after, after))
    }

    fn before() -> Value {
        json!({
            "type": "object", "required": ["a"], "additionalProperties": false,
            "properties": {
                "a": {"type": "string", "enum": ["x", "y"], "maxLength": 10},
                "b": {"$ref": "#/$defs/B"},
            },
            "$defs": {"B": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/B"}}]}},
        })
    }

    /// A copy with one place changed.
    fn with(place: &str, value: Value) -> Value {
        let mut after = before();
        let (parent, last) = place.rsplit_once('/').unwrap();
        after.pointer_mut(parent).unwrap()[last] = value;
        after
    }

    #[test]
    fn what_is_only_added_breaks_nobody() {
        for side in [Side::Incoming, Side::Outgoing, Side::Internal] {
            assert_eq!(breaks(side, &before(), &before()), Vec::<String>::new());
            assert_eq!(
                breaks(side, &before(), &with("/properties/c", json!({"type": "string"}))),
                Vec::<String>::new()
            );
            let words = with("/properties/a/enum", json!(["x", "y", "z"]));
            assert_eq!(breaks(side, &before(), &words), Vec::<String>::new());
        }
    }

    #[test]
    fn a_word_or_null_may_become_a_reference_or_null() {
        let before = json!({"type": ["string", "null"], "enum": ["x", null]});
        let after = json!({"anyOf": [{"$ref": "#/$defs/Word"}, {"type": "null"}],
            "$defs": {"Word": {"type": "string", "enum": ["x", "y"]}}});
        for side in [Side::Incoming, Side::Outgoing, Side::Internal] {
            assert_eq!(breaks(side, &before, &after), Vec::<String>::new(), "{side:?}");
        }
        let never_null = json!({"anyOf": [{"$ref": "#/$defs/Word"}], "$defs": after["$defs"]});
        assert!(!breaks(Side::Incoming, &before, &never_null).is_empty());
    }

    #[test]
    fn what_somebody_relied_on_is_missed() {
        let gone = json!({"a": {"type": "string", "enum": ["x", "y"], "maxLength": 10}});
        for side in [Side::Incoming, Side::Outgoing, Side::Internal] {
            for (place, value) in [
                ("/properties", gone.clone()),
                ("/properties/a/enum", json!(["x"])),
                ("/properties/a/type", json!("integer")),
                ("/$defs/B/anyOf", json!([{"type": "integer"}])),
            ] {
                assert!(!breaks(side, &before(), &with(place, value)).is_empty(), "{side:?} {place}");
            }
        }
    }

    #[test]
    fn a_reader_must_go_on_taking_and_a_writer_go_on_telling() {
        let required = with("/required", json!(["a", "b"]));
        assert!(
            !breaks(Side::Incoming, &before(), &required).is_empty()
                && !breaks(Side::Internal, &before(), &required).is_empty()
        );
        assert!(breaks(Side::Outgoing, &before(), &required).is_empty());
        let dropped = with("/required", json!([]));
        assert!(
            !breaks(Side::Outgoing, &before(), &dropped).is_empty()
                && breaks(Side::Incoming, &before(), &dropped).is_empty()
        );
        let shorter = with("/properties/a/maxLength", json!(5));
        assert!(
            !breaks(Side::Incoming, &before(), &shorter).is_empty()
                && breaks(Side::Outgoing, &before(), &shorter).is_empty()
        );
    }
}
