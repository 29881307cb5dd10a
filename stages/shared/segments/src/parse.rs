//! From JSON to a rule, with every fault and its place.

use chrono::{DateTime, NaiveDate};
use schemas::{Address, parse_id};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::{
    SegmentFault,
    event::{EVENT_OPS, EVENTS, EventKind, EventSource, EventTest, MailEvents, ProductEvents, Times, is_event_name},
    field::{BUILT_IN, Definitions, Field, OPS, Op, ValueKind},
    rule::{Bound, FieldTest, Membership, Rule, Scalar, SegmentRef, Test},
};

/// How deep a rule may nest; a leaf alone is one deep.
pub const DEPTH_MAX: usize = 5;
/// Leaves one rule may have.
pub const LEAVES_MAX: usize = 50;
/// The longest text a rule compares with, in characters.
pub const TEXT_MAX_CHARS: usize = 500;
/// Values `in` and `not_in` may list.
const LIST_MAX: usize = 200;
/// The largest rule, in bytes of JSON.
const RULE_MAX_BYTES: usize = 64 * 1024;
/// Faults that are named at once.
const FAULTS_MAX: usize = 50;
const DAYS_MAX: i64 = 36_500;
const TIMES_MAX: i64 = 1_000_000;
/// Properties of a product's event that a leaf may compare.
pub const PROPERTIES_MAX: usize = 5;

/// What a node can be, by the key it has.
const KINDS: [&str; 9] = ["all", "any", "not", "field", "in_list", "has_tag", "in_segment", "event", "product_event"];

impl Rule {
    /// Reads a rule; `path` is where it stands in the request. Answers every fault, up to fifty.
    pub fn parse(value: &Value, path: &str, definitions: &Definitions) -> Result<Self, Vec<SegmentFault>> {
        if serde_json::to_vec(value).is_ok_and(|json| json.len() > RULE_MAX_BYTES) {
            return Err(vec![SegmentFault::new(path, "too_long", format!("may have at most {RULE_MAX_BYTES} bytes"))]);
        }
        let mut reader = RuleReader { root: path, definitions, faults: Vec::new(), leaves: 0 };
        let rule = reader.node(value, path, 1);
        match rule {
            Some(rule) if reader.faults.is_empty() => Ok(rule),
            _ => Err(reader.faults),
        }
    }
}

struct RuleReader<'a> {
    root: &'a str,
    definitions: &'a Definitions,
    faults: Vec<SegmentFault>,
    leaves: usize,
}

/// The keys of one node, and where it stands.
struct Node<'a> {
    object: &'a Map<String, Value>,
    path: &'a str,
}

impl Node<'_> {
    fn at(&self, key: &str) -> String {
        format!("{}.{key}", self.path)
    }

    /// A key's value; null is as good as left out.
    fn get(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }
}

impl RuleReader<'_> {
    fn fault<T>(&mut self, path: impl Into<String>, code: &'static str, detail: impl Into<String>) -> Option<T> {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(SegmentFault::new(path, code, detail));
        }
        None
    }

    fn node(&mut self, value: &Value, path: &str, depth: usize) -> Option<Rule> {
        if self.faults.len() >= FAULTS_MAX {
            return None;
        }
        let Value::Object(object) = value else { return self.fault(path, "wrong_type", "must be an object") };
        if depth > DEPTH_MAX {
            return self.fault(path, "too_deep", format!("a rule may be at most {DEPTH_MAX} deep"));
        }
        let node = Node { object, path };
        let mut kinds = KINDS.into_iter().filter(|kind| object.contains_key(*kind));
        let description = || format!("must have exactly one of {}", KINDS.join(", "));
        let (Some(kind), others) = (kinds.next(), kinds.count()) else {
            return self.fault(path, "required", description());
        };
        if others > 0 {
            return self.fault(path, "ambiguous", description());
        }
        self.only(&node, kind);
        match kind {
            "all" => self.several(&node, kind, depth).map(Rule::All),
            "any" => self.several(&node, kind, depth).map(Rule::Any),
            "not" => self.node(&object[kind], &node.at(kind), depth + 1).map(|rule| Rule::Not(Box::new(rule))),
            _ => self.leaf(&node, kind),
        }
    }

    /// Faults for keys that a node of this kind does not have.
    fn only(&mut self, node: &Node<'_>, kind: &str) {
        let others: &[&str] = match kind {
            "field" => &["op", "value"],
            "event" => &["op", "count", "within_days", "campaign_id", "human_only"],
            "product_event" => &["op", "count", "within_days", "properties"],
            _ => &[],
        };
        for key in node.object.keys().filter(|key| *key != kind && !others.contains(&key.as_str())) {
            self.fault::<()>(node.at(key), "unknown_field", "is not part of such a rule");
        }
    }

    fn several(&mut self, node: &Node<'_>, kind: &str, depth: usize) -> Option<Vec<Rule>> {
        let path = node.at(kind);
        let Value::Array(items) = &node.object[kind] else {
            return self.fault(path, "wrong_type", "must be a list of rules");
        };
        if items.is_empty() {
            return self.fault(path, "empty", "must have at least one rule");
        }
        if items.len() > LEAVES_MAX {
            return self.fault(path, "too_many", format!("a rule may have at most {LEAVES_MAX} leaves"));
        }
        let read = |(at, item): (usize, &Value)| self.node(item, &format!("{path}[{at}]"), depth + 1);
        // Each is read, also after a fault: all faults are named at once.
        let rules: Vec<Option<Rule>> = items.iter().enumerate().map(read).collect();
        rules.into_iter().collect()
    }

    fn leaf(&mut self, node: &Node<'_>, kind: &str) -> Option<Rule> {
        self.leaves += 1;
        if self.leaves > LEAVES_MAX {
            if self.leaves == LEAVES_MAX + 1 {
                self.fault::<()>(self.root, "too_many", format!("a rule may have at most {LEAVES_MAX} leaves"));
            }
            return None;
        }
        match kind {
            "field" => self.field(node).map(Rule::Field),
            "event" => self.event(node).map(Rule::Event),
            "product_event" => self.product_event(node).map(Rule::Event),
            "in_segment" => {
                let path = node.at(kind);
                self.id(&node.object[kind], &path).map(|id| Rule::Segment(SegmentRef { id, path }))
            }
            _ => {
                let kind_of = if kind == "in_list" { "list" } else { "tag" };
                let id = self.id(&node.object[kind], &node.at(kind))?;
                Some(Rule::Member(Membership { id, kind: kind_of }))
            }
        }
    }

    fn id(&mut self, value: &Value, path: &str) -> Option<Uuid> {
        let Value::String(text) = value else { return self.fault(path, "wrong_type", "must be an id") };
        match parse_id(text) {
            Ok(id) => Some(id),
            Err(error) => self.fault(path, "invalid", error.to_string()),
        }
    }

    /// A value that may be left out; the inner `None` if it is.
    fn optional<T>(
        &mut self,
        node: &Node<'_>,
        key: &str,
        read: impl FnOnce(&mut Self, &Value, &str) -> Option<T>,
    ) -> Option<Option<T>> {
        node.get(key).map_or(Some(None), |value| read(self, value, &node.at(key)).map(Some))
    }

    /// A word that must be there, of a closed set.
    fn word<T>(&mut self, node: &Node<'_>, key: &str, description: &[&str], parse: fn(&str) -> Option<T>) -> Option<T> {
        let path = node.at(key);
        match node.get(key) {
            None => self.fault(path, "required", "is required"),
            Some(Value::String(text)) => match parse(text) {
                Some(word) => Some(word),
                None => self.fault(path, "not_allowed", format!("must be one of {}", description.join(", "))),
            },
            Some(_) => self.fault(path, "wrong_type", "must be a string"),
        }
    }

    fn field(&mut self, node: &Node<'_>) -> Option<FieldTest> {
        let op = self.word(node, "op", OPS, Op::parse);
        let path = node.at("field");
        let Value::String(name) = &node.object["field"] else {
            return self.fault(path, "wrong_type", "must be the name of a field");
        };
        let Some(field) = Field::find(name, self.definitions) else {
            let known: Vec<&str> = BUILT_IN.iter().map(|(name, ..)| *name).collect();
            let detail = format!("must be one of {}, or fields.<key> of a defined field", known.join(", "));
            return self.fault(path, "unknown_field", detail);
        };
        let op = op?;
        if !field.kind.takes(op) {
            let applies = Op::ALL.iter().filter(|op| field.kind.takes(**op));
            let ops: Vec<&str> = applies.map(|op| op.as_str()).collect();
            let detail = format!("does not apply to {}; one of {} does", field.kind.description(), ops.join(", "));
            return self.fault(node.at("op"), "not_allowed", detail);
        }
        let test = self.test(node, field.kind, op)?;
        Some(FieldTest { field, test, negated: op.is_negative() })
    }

    fn test(&mut self, node: &Node<'_>, kind: ValueKind, op: Op) -> Option<Test> {
        let path = node.at("value");
        let value = match (node.get("value"), op.takes_no_value()) {
            (None, true) => return Some(Test::Exists),
            (Some(_), true) => return self.fault(path, "not_allowed", format!("{} has no value", op.as_str())),
            (None, false) => return self.fault(path, "required", "is required"),
            (Some(value), false) => value,
        };
        match op {
            Op::Eq | Op::Neq => self.scalar(kind, value, &path).map(|value| Test::OneOf(vec![value])),
            Op::In | Op::NotIn => self.scalars(kind, value, &path).map(Test::OneOf),
            Op::Contains | Op::NotContains => self.text(value, &path).map(Test::Contains),
            Op::StartsWith => self.text(value, &path).map(Test::StartsWith),
            Op::EndsWith => self.text(value, &path).map(Test::EndsWith),
            Op::Includes => self.text(value, &path).map(Test::Includes),
            Op::Gt | Op::After => Some(Test::Range(Some(self.bound(kind, value, &path, false)?), None)),
            Op::Gte => Some(Test::Range(Some(self.bound(kind, value, &path, true)?), None)),
            Op::Lt | Op::Before => Some(Test::Range(None, Some(self.bound(kind, value, &path, false)?))),
            Op::Lte => Some(Test::Range(None, Some(self.bound(kind, value, &path, true)?))),
            Op::Between => self.between(kind, value, &path),
            Op::WithinDays => self.days(value, &path, -DAYS_MAX).map(Test::WithinDays),
            Op::OlderThanDays => self.days(value, &path, 1).map(Test::OlderThanDays),
            Op::Exists | Op::NotExists => Some(Test::Exists),
        }
    }

    fn bound(&mut self, kind: ValueKind, value: &Value, path: &str, inclusive: bool) -> Option<Bound> {
        self.scalar(kind, value, path).map(|value| Bound { value, inclusive })
    }

    fn between(&mut self, kind: ValueKind, value: &Value, path: &str) -> Option<Test> {
        let Some([from, to]) = value.as_array().and_then(|ends| <&[Value; 2]>::try_from(ends.as_slice()).ok()) else {
            return self.fault(path, "wrong_type", "must be a list of two: from and to");
        };
        let from = self.bound(kind, from, &format!("{path}[0]"), true);
        let to = self.bound(kind, to, &format!("{path}[1]"), true);
        Some(Test::Range(Some(from?), Some(to?)))
    }

    fn scalars(&mut self, kind: ValueKind, value: &Value, path: &str) -> Option<Vec<Scalar>> {
        let Value::Array(items) = value else { return self.fault(path, "wrong_type", "must be a list of values") };
        if items.is_empty() {
            return self.fault(path, "empty", "must have at least one value");
        }
        if items.len() > LIST_MAX {
            return self.fault(path, "too_many", format!("may have at most {LIST_MAX} values"));
        }
        let read = |(at, item): (usize, &Value)| self.scalar(kind, item, &format!("{path}[{at}]"));
        let values: Vec<Option<Scalar>> = items.iter().enumerate().map(read).collect();
        values.into_iter().collect()
    }

    fn scalar(&mut self, kind: ValueKind, value: &Value, path: &str) -> Option<Scalar> {
        match (kind, value) {
            (ValueKind::Email, Value::String(text)) => match Address::parse(text) {
                Ok(address) => Some(Scalar::Text(address.into_string())),
                Err(error) => self.fault(path, error.code(), error.to_string()),
            },
            (ValueKind::Word(description), Value::String(text)) => {
                if description.contains(&text.as_str()) {
                    Some(Scalar::Text(text.clone()))
                } else {
                    self.fault(path, "not_allowed", format!("must be one of {}", description.join(", ")))
                }
            }
            (ValueKind::Text | ValueKind::TextList, _) => self.text(value, path).map(Scalar::Text),
            (ValueKind::Number, Value::Number(number)) if number.as_f64().is_some_and(f64::is_finite) => {
                Some(Scalar::Number(number.to_string()))
            }
            (ValueKind::Boolean, Value::Bool(value)) => Some(Scalar::Boolean(*value)),
            (ValueKind::Date, Value::String(text)) if parse_date(text).is_some() => Some(Scalar::Date(text.clone())),
            (ValueKind::Instant, Value::String(text)) => match DateTime::parse_from_rfc3339(text) {
                Ok(at) => Some(Scalar::Instant(at.to_utc())),
                Err(_) => self.fault(path, "wrong_type", wanted(kind)),
            },
            _ => self.fault(path, "wrong_type", wanted(kind)),
        }
    }

    fn text(&mut self, value: &Value, path: &str) -> Option<String> {
        let Value::String(text) = value else { return self.fault(path, "wrong_type", "must be a string") };
        if text.is_empty() {
            return self.fault(path, "empty", "must not be empty");
        }
        if text.chars().nth(TEXT_MAX_CHARS).is_some() {
            return self.fault(path, "too_long", format!("may have at most {TEXT_MAX_CHARS} characters"));
        }
        // Postgres cannot take it.
        if text.contains('\0') {
            return self.fault(path, "invalid", "contains a NUL character");
        }
        Some(text.clone())
    }

    /// A whole number of days, not zero.
    fn days(&mut self, value: &Value, path: &str, least: i64) -> Option<i32> {
        let Some(days) = value.as_i64() else {
            return self.fault(path, "wrong_type", "must be a whole number of days");
        };
        if days == 0 || !(least..=DAYS_MAX).contains(&days) {
            let except = if least < 0 { ", and not 0" } else { "" };
            return self.fault(path, "out_of_range", format!("must be from {least} to {DAYS_MAX}{except}"));
        }
        i32::try_from(days).ok()
    }

    fn event(&mut self, node: &Node<'_>) -> Option<EventTest> {
        let kind = self.word(node, "event", EVENTS, EventKind::parse);
        let within_days = self.optional(node, "within_days", |reader, value, path| reader.days(value, path, 1));
        let campaign_id = self.optional(node, "campaign_id", Self::id);
        let human_only = self.optional(node, "human_only", |reader, value, path| {
            value.as_bool().or_else(|| reader.fault(path, "wrong_type", "must be true or false"))
        });
        let times = self.times(node);
        let (kind, human_only) = (kind?, human_only?.unwrap_or(false));
        if human_only && !kind.has_humans() {
            return self.fault(node.at("human_only"), "not_allowed", "applies to email.opened and email.clicked only");
        }
        let (within_days, campaign_id) = (within_days?, campaign_id?);
        let source = EventSource::Mail(MailEvents { kind, within_days, campaign_id, human_only });
        Some(EventTest { source, times: times? })
    }

    fn product_event(&mut self, node: &Node<'_>) -> Option<EventTest> {
        let path = node.at("product_event");
        let name = match &node.object["product_event"] {
            Value::String(name) if is_event_name(name) => Some(name.clone()),
            _ => self.fault(path, "invalid", "must be 1 to 100 of a-z, 0-9, _ and ., beginning with a letter"),
        };
        let within_days = self.optional(node, "within_days", |reader, value, path| reader.days(value, path, 1));
        let properties = self.optional(node, "properties", Self::properties);
        let times = self.times(node);
        let (within_days, properties) = (within_days?, properties?);
        let source = EventSource::Product(ProductEvents { name: name?, within_days, properties });
        Some(EventTest { source, times: times? })
    }

    /// Properties and the values that an event must have: texts, numbers, true or false.
    fn properties(&mut self, value: &Value, path: &str) -> Option<Value> {
        let Value::Object(properties) = value else { return self.fault(path, "wrong_type", "must be an object") };
        if properties.len() > PROPERTIES_MAX {
            return self.fault(path, "too_many", format!("may have at most {PROPERTIES_MAX} properties"));
        }
        for (key, value) in properties {
            let at = format!("{path}.{}", key.chars().take(TEXT_MAX_CHARS).collect::<String>());
            match value {
                Value::Bool(_) | Value::Number(_) => {}
                Value::String(text) if text.is_empty() => {}
                Value::String(_) => {
                    self.text(value, &at)?;
                }
                _ => return self.fault(at, "wrong_type", "must be a text, a number, true or false"),
            }
        }
        Some(value.clone())
    }

    /// At least once, where nothing is said.
    fn times(&mut self, node: &Node<'_>) -> Option<Times> {
        let least = match node.get("op") {
            None => "at_least",
            Some(_) => self.word(node, "op", &EVENT_OPS, |text| EVENT_OPS.into_iter().find(|op| *op == text))?,
        };
        let count = self.optional(node, "count", |reader, value, path| {
            value.as_i64().or_else(|| reader.fault(path, "wrong_type", "must be a whole number"))
        });
        let count = count?.unwrap_or(1);
        // "At least never" would be every contact.
        let fewest = i64::from(least == "at_least");
        if !(fewest..=TIMES_MAX).contains(&count) {
            return self.fault(node.at("count"), "out_of_range", format!("must be from {fewest} to {TIMES_MAX}"));
        }
        Some(match least {
            "at_most" => Times::AtMost(count),
            "exactly" => Times::Exactly(count),
            _ => Times::AtLeast(count),
        })
    }
}

fn wanted(kind: ValueKind) -> &'static str {
    match kind {
        ValueKind::Text | ValueKind::TextList | ValueKind::Email | ValueKind::Word(_) => "must be a string",
        ValueKind::Number => "must be a number",
        ValueKind::Boolean => "must be true or false",
        ValueKind::Date => "must be an existing date as YYYY-MM-DD",
        ValueKind::Instant => "must be a time with a zone, as 2026-03-01T09:00:00Z (RFC 3339)",
    }
}

/// A date as `YYYY-MM-DD`: texts of this form are in the order of their days, and compared as texts.
#[must_use]
pub fn parse_date(text: &str) -> Option<NaiveDate> {
    // chrono also takes spaces, signs and single digits.
    let date = NaiveDate::parse_from_str(text, "%Y-%m-%d").ok()?;
    (text.len() == 10 && date.to_string() == text).then_some(date)
}

#[cfg(test)]
#[path = "parse/tests.rs"]
mod tests;
