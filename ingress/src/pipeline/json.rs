//! Strict JSON: every parser reads a body the same way. Duplicate keys, NUL characters, trailing bytes, unknown fields and anything but
//! an object at the top are refused.

use std::{fmt, time::Duration};

use runtime::{Budget, Limits, Spent};
use schemas::fault::{describe_fault, is_wrong_type};
use serde::{
    Deserializer,
    de::{DeserializeOwned, DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

use super::{body::IMPORT_BODY_MAX_BYTES, plain::Plain};
use crate::pipeline::error::{ApiError, FieldFault};

/// How deep objects and arrays may nest.
const DEPTH_MAX: usize = 32;
/// How many values a body may hold; an object that is not empty counts as [`OBJECT_WEIGHT`]. One or two bytes of text become 32 bytes of
/// memory, or 700, so the length is no bound.
const VALUES_MAX: usize = 500_000;
const OBJECT_WEIGHT: usize = 20;
/// What a value takes in memory, in bytes, beside its text.
const VALUE_BYTES: usize = 32;

/// The budget of parsing one body. A step is a value; memory is that of all values and their texts.
const LIMITS: Limits = Limits {
    input_bytes: IMPORT_BODY_MAX_BYTES,
    held_bytes: VALUES_MAX * VALUE_BYTES + IMPORT_BODY_MAX_BYTES,
    // The outermost value stands at no depth.
    depth: DEPTH_MAX as u32 + 1,
    steps: VALUES_MAX as u64,
    time: Duration::from_secs(10),
};

/// The most memory in bytes that the values of a body take, estimated from its bytes alone: a separator may be a value, a brace an object.
pub(crate) fn weight(body: &[u8]) -> usize {
    let count = |byte| memchr::memchr_iter(byte, body).count();
    let separators = count(b',') + count(b'[') + count(b':');
    body.len() + (1 + separators + count(b'{') * OBJECT_WEIGHT) * VALUE_BYTES
}

/// Parses a body.
///
/// # Errors
/// 400 `invalid_json` that says what and where.
pub(crate) fn parse(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match parse_value(body)? {
        Value::Object(object) => Ok(object),
        _ => Err(ApiError::invalid_json("the body must be an object")),
    }
}

fn parse_value(body: &[u8]) -> Result<Value, ApiError> {
    parse_within(&Budget::new(LIMITS), body)
}

fn parse_within(budget: &Budget, body: &[u8]) -> Result<Value, ApiError> {
    let fault = |detail: String| match budget.check_time() {
        Ok(()) => ApiError::invalid_json(detail),
        // Only a busy machine explains it.
        Err(_) => ApiError::unavailable(),
    };
    budget.take_input(body.len()).map_err(|spent| fault(spent.to_string()))?;
    let text = std::str::from_utf8(body).map_err(|_| ApiError::invalid_json("the body is not UTF-8"))?;
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = Strict { budget }.deserialize(&mut reader).map_err(|error| fault(error.to_string()))?;
    reader.end().map_err(|error| ApiError::invalid_json(error.to_string()))?;
    Ok(value)
}

/// True if a body begins like an array.
pub(crate) fn is_array(body: &[u8]) -> bool {
    body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[')
}

/// Parses an array of at most `max_items` values of any type.
///
/// # Errors
/// 400 `invalid_json` that says what and where, 400 `validation_failed` for too many or none.
pub(crate) fn parse_array(body: &[u8], max_items: usize) -> Result<Vec<Value>, ApiError> {
    let Value::Array(items) = parse_value(body)? else {
        return Err(ApiError::invalid_json("the body must be an array"));
    };
    if items.is_empty() {
        return Err(ApiError::invalid("", "empty", "the array must not be empty"));
    }
    if items.len() > max_items {
        return Err(ApiError::invalid("", "too_many", format!("the array may have at most {max_items} items")));
    }
    Ok(items)
}

#[derive(Clone, Copy)]
struct Strict<'a> {
    budget: &'a Budget,
}

impl Strict<'_> {
    /// Charges the budget for so many values.
    fn take_values<E: serde::de::Error>(self, values: usize) -> Result<(), E> {
        self.budget.take_steps(values as u64).map_err(spent)?;
        self.budget.hold(values * VALUE_BYTES).map_err(spent)
    }

    /// Charges the budget for a text. Postgres cannot store NUL in one, and would refuse the whole row.
    fn take_text<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        if text.contains('\0') {
            return Err(E::custom("a string contains a NUL character"));
        }
        self.budget.hold(text.len()).map_err(spent)
    }
}

fn spent<E: serde::de::Error>(spent: Spent) -> E {
    match spent {
        Spent::Depth => E::custom("nested too deep"),
        Spent::Steps | Spent::Held => E::custom("too many values"),
        Spent::Input | Spent::Time => E::custom(spent),
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let _level = self.budget.enter().map_err(spent)?;
        self.take_values(1)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        self.take_text(text)?;
        Ok(Value::String(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            self.take_text(&key)?;
            // serde_json reads an object with this key as what its text says, unchecked.
            if key == "$serde_json::private::RawValue" {
                return Err(A::Error::custom("a reserved key"));
            }
            if object.is_empty() {
                self.take_values(OBJECT_WEIGHT)?;
            }
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("duplicate key `{}`", shortened(&key))));
            }
            let value = entries.next_value_seed(self)?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

fn shortened(text: &str) -> &str {
    text.char_indices().nth(50).map_or(text, |(at, _)| &text[..at])
}

/// Reads an object into a type. The type should `deny_unknown_fields`.
///
/// # Errors
/// 400 `validation_failed` with the path of the first fault.
pub fn decode<T: DeserializeOwned>(object: Map<String, Value>) -> Result<T, ApiError> {
    decode_from(Plain(Value::Object(object)))
}

/// Reads a type, with the path of the first fault in a refusal.
pub(super) fn decode_from<'de, T: DeserializeOwned>(from: impl Deserializer<'de>) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(from).map_err(|error| {
        let path = error.path().to_string();
        fault(if path == "." { "" } else { &path }, &error.inner().to_string())
    })
}

/// Makes a refusal of what serde says.
fn fault(path: &str, message: &str) -> ApiError {
    let quoted = || message.split('`').nth(1).unwrap_or_default();
    let joined = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    let fault = if message.starts_with("missing field") {
        FieldFault::new(joined(quoted()), "required", "is required")
    } else if message.starts_with("unknown field") {
        // serde puts the unknown name at the end of the path already.
        let name = quoted();
        let at = if path == name || path.ends_with(&format!(".{name}")) { path.to_owned() } else { joined(name) };
        FieldFault::new(at, "unknown_field", "is not a field of this request")
    } else if message.starts_with("duplicate field") {
        FieldFault::new(joined(quoted()), "duplicate", "is given twice")
    } else if message.starts_with("unknown variant") {
        let allowed = message.rsplit_once(", expected ").map_or("", |(_, rest)| rest.trim_start_matches("one of "));
        FieldFault::new(
            path,
            "not_allowed",
            format!("must be one of {}", allowed.replace('`', "").replace(" or ", ", ")),
        )
    } else {
        let code = if is_wrong_type(message) { "wrong_type" } else { "invalid" };
        FieldFault::new(path, code, describe_fault(message))
    };
    ApiError::validation(vec![fault])
}

#[cfg(test)]
mod tests {
    use super::{
        super::patch::{Id, Patch},
        *,
    };
    use hostile::{Shape, check_growth, fuzz};
    use proptest::prelude::*;
    use rstest::rstest;
    use runtime::Used;
    use serde::Deserialize;
    use serde_json::json;

    fn cost(body: &[u8]) -> Used {
        let budget = Budget::new(LIMITS);
        let _ = parse_within(&budget, body);
        budget.used()
    }

    #[test]
    fn the_cost_of_a_body_grows_with_its_length() {
        fn around(start: &str, filling: &str, n: usize, end: &str) -> Vec<u8> {
            [start, &filling.repeat(n / filling.len()), end].concat().into_bytes()
        }
        let shapes: [Shape; 8] = [
            ("numbers", |n| around("[", "1,", n, "1]")),
            ("objects", |n| around("[", r#"{"":1},"#, n, "1]")),
            ("arrays", |n| around("[", "[],", n, "1]")),
            ("nesting", |n| around("", "[", n, "")),
            ("nested objects", |n| around("", r#"{"a":"#, n, "")),
            ("a text", |n| around("\"", "x", n, "\"")),
            ("escapes", |n| around("\"", r"\u0041", n, "\"")),
            ("keys", |n| {
                format!("{{{}\"\":1}}", (0..n / 10).map(|at| format!("\"k{at}\":1,")).collect::<String>()).into_bytes()
            }),
        ];
        check_growth(&shapes, 20_000, 20_000, cost);
    }

    #[test]
    fn fuzz_json() {
        const TOKENS: &[&[u8]] = &[
            b"{",
            b"}",
            b"[",
            b"]",
            b":",
            b",",
            b"\"",
            b"\"a\"",
            b"\"product_tenant_id\"",
            b"\\u0000",
            b"\\ud83d",
            b"\\",
            b"null",
            b"true",
            b"1",
            b"-0",
            b"1e999",
            b"0.1",
            b"\xef\xbb\xbf",
            b"\xff",
            b" ",
            b"\n",
        ];
        fuzz(TOKENS, |input| {
            if let Ok(object) = parse(input) {
                let _ = decode::<Body>(object);
            }
        });
    }

    #[rstest]
    #[case::text(r#"{"a":"text"}"#)]
    #[case::numbers("{\"a\":[1,1,1,1]}")]
    #[case::objects("{\"a\":[{\"b\":{}},{\"b\":{}}]}")]
    #[case::nested("{\"a\":[[[[[]]]]]}")]
    fn a_body_weighs_at_least_what_is_held_of_it(#[case] body: &str) {
        let budget = Budget::new(LIMITS);
        parse_within(&budget, body.as_bytes()).unwrap();
        let held = LIMITS.held_bytes - budget.held_left();
        assert!(weight(body.as_bytes()) >= held && held > 0, "{held}");
    }

    #[rstest]
    #[case::numbers("1,", VALUES_MAX - 23, VALUES_MAX)]
    #[case::objects(r#"{"":1},"#, VALUES_MAX / 22 - 2, VALUES_MAX / 22)]
    fn a_body_holds_a_bounded_number_of_values(#[case] item: &str, #[case] few: usize, #[case] many: usize) {
        let body = |count: usize| format!(r#"{{"a":[{}1]}}"#, item.repeat(count)).into_bytes();
        assert!(parse(&body(few)).is_ok());
        let error = parse(&body(many)).unwrap_err();
        assert!((error.status.as_u16(), error.code.as_ref()) == (400, "invalid_json"), "{error:?}");
        assert!(error.detail.as_deref().is_some_and(|detail| detail.contains("too many values")), "{error:?}");
    }

    #[rstest]
    #[case(r#"{"a":1,"a":2}"#, "duplicate key `a`")]
    #[case(r#"{"x":[{"b":{"a":1,"a":1}}]}"#, "duplicate key `a`")]
    #[case(r#"{"a":1,"\u0061":2}"#, "duplicate key `a`")]
    #[case(r#"{"a":"x\u0000y"}"#, "NUL")]
    #[case(r#"{"a\u0000":1}"#, "NUL")]
    #[case(r#"{"a":["\u0000"]}"#, "NUL")]
    #[case(r#"{"a":{"$serde_json::private::RawValue":"\"\\u0000\""}}"#, "a reserved key")]
    #[case(r#"{"a":1} x"#, "trailing")]
    #[case(r#"{"a":1}{"a":1}"#, "trailing")]
    #[case("[1]", "object")]
    #[case("\"text\"", "object")]
    #[case("null", "object")]
    #[case("", "EOF")]
    #[case("{", "EOF")]
    #[case("{'a':1}", "key must be a string")]
    #[case("\u{feff}{}", "expected value")]
    #[case(r#"{"a":1e999}"#, "out of range")]
    fn what_is_not_one_plain_object_is_refused(#[case] body: &str, #[case] reason: &str) {
        let error = parse(body.as_bytes()).unwrap_err();
        assert_eq!(error.code, "invalid_json");
        assert!(error.detail.clone().unwrap().contains(reason), "{:?}", error.detail);
    }

    #[test]
    fn bytes_that_are_not_utf8_are_refused() {
        assert_eq!(parse(b"{\"a\":\"\xff\"}").unwrap_err().code, "invalid_json");
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(nested(DEPTH_MAX).as_bytes()).is_ok());
        assert!(parse(nested(DEPTH_MAX + 1).as_bytes()).is_err());
        assert!(parse(nested(100_000).as_bytes()).is_err());
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Body {
        name: String,
        #[serde(default, deserialize_with = "crate::pipeline::or_default")]
        steps: Vec<Step>,
        #[serde(default)]
        note: Patch<String>,
        #[serde(default)]
        list_id: Option<Id>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Step {
        kind: Kind,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Kind {
        Wait,
        Send,
    }

    #[rstest]
    #[case(json!({}), "name", "required")]
    #[case(json!({"name": 1}), "name", "wrong_type")]
    #[case(json!({"name": null}), "name", "wrong_type")]
    #[case(json!({"name": "a", "extra": 1}), "extra", "unknown_field")]
    #[case(json!({"name": "a", "steps": [{"kind": "wait"}, {"kind": "wait", "x": 1}]}), "steps[1].x", "unknown_field")]
    #[case(json!({"name": "a", "steps": [{}]}), "steps[0].kind", "required")]
    #[case(json!({"name": "a", "steps": [{"kind": "jump"}]}), "steps[0].kind", "not_allowed")]
    #[case(json!({"name": "a", "list_id": "urn:uuid:0198c0de-0000-7000-8000-000000000001"}), "list_id", "invalid")]
    fn a_fault_says_where_and_what(#[case] body: Value, #[case] path: &str, #[case] code: &str) {
        let Value::Object(object) = body else { unreachable!() };
        let error = decode::<Body>(object).unwrap_err();
        assert_eq!(error.code, "validation_failed");
        assert_eq!((error.fields[0].path.as_str(), error.fields[0].code.as_ref()), (path, code), "{error:?}");
    }

    #[derive(Debug, Deserialize)]
    #[allow(dead_code)]
    struct Typed {
        count: Option<u32>,
        balance: Option<i64>,
        flag: Option<bool>,
        tags: Option<Vec<String>>,
        data: Option<Map<String, Value>>,
    }

    #[rstest]
    #[case(json!({"count": -1}), "must be a whole number of 0 or more")]
    #[case(json!({"count": 5_000_000_000_u64}), "must be a whole number in range")]
    #[case(json!({"balance": 1.5}), "must be a whole number")]
    #[case(json!({"flag": "yes"}), "must be true or false")]
    #[case(json!({"tags": "a"}), "must be a list")]
    #[case(json!({"tags": [1]}), "must be a string")]
    #[case(json!({"data": []}), "must be an object")]
    fn a_fault_names_no_type_of_ours(#[case] body: Value, #[case] detail: &str) {
        let Value::Object(object) = body else { unreachable!() };
        let error = decode::<Typed>(object).unwrap_err();
        assert_eq!((error.fields[0].code.as_ref(), error.fields[0].detail.as_str()), ("wrong_type", detail));
    }

    #[test]
    fn a_fault_does_not_quote_the_value() {
        let error = decode::<Body>(json!({"name": ["ann@example.com"]}).as_object().unwrap().clone()).unwrap_err();
        assert!(!format!("{error:?}").contains("ann@"));
        let body = json!({"name": "a", "steps": [{"kind": "expected, expected ann@example.com"}]});
        let error = decode::<Body>(body.as_object().unwrap().clone()).unwrap_err();
        assert_eq!(error.fields[0].detail, "must be one of wait, send");
    }

    #[test]
    fn a_patch_tells_absent_from_null() {
        let patch = |body: &str| decode::<Body>(parse(body.as_bytes()).unwrap()).unwrap().note;
        assert_eq!(patch(r#"{"name":"a"}"#), Patch::Absent);
        assert_eq!(patch(r#"{"name":"a","note":null}"#), Patch::Null);
        assert_eq!(patch(r#"{"name":"a","note":"x"}"#), Patch::Value("x".to_owned()));
    }

    #[rstest]
    #[case(r#"{"name":"a"}"#)]
    #[case(r#"{"name":"a","steps":null}"#)]
    fn null_leaves_a_field_at_its_default(#[case] body: &str) {
        let read = decode::<Body>(parse(body.as_bytes()).unwrap()).unwrap();
        assert!(read.steps.is_empty());
    }

    proptest! {
        #[test]
        fn a_strict_reading_equals_the_ordinary_one(text in "[\\[\\]{}:,\"a-c0-9. \\\\-]{0,40}") {
            if let Ok(object) = parse(text.as_bytes()) {
                prop_assert_eq!(Value::Object(object), serde_json::from_str::<Value>(&text).unwrap());
            }
        }
    }
}
