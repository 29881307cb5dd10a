//! What is made of a generated schema before others see it.

use std::collections::BTreeMap;

use serde_json::Value;

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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_description_is_for_people_and_an_integer_has_bounds_only() {
        let made = normalized(
            json!({"description": "As [`crate::SendId::of`]\nsays.\n\nMore.", "format": "uint16", "maximum": 1}),
        );
        assert_eq!(made, json!({"description": "As `SendId::of` says.\n\nMore.", "maximum": 1}));
        assert_eq!(normalized(json!({"format": "uuid"})), json!({"format": "uuid"}));
    }
}
