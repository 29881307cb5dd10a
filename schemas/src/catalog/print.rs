//! JSON for people: what fits on a line stands on one.

use serde_json::Value;

const WIDTH: usize = 120;
const INDENT: &str = "  ";

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
    let inner = format!("{indent}{INDENT}");
    match value {
        // A comma may follow.
        _ if before + line.chars().count() < WIDTH => out.push_str(&line),
        Value::Array(items) if !items.is_empty() => {
            let mut separator = "[";
            for item in items {
                out.push_str(&format!("{separator}\n{inner}"));
                print(out, item, &inner, inner.len());
                separator = ",";
            }
            out.push_str(&format!("\n{indent}]"));
        }
        Value::Object(fields) if !fields.is_empty() => {
            let mut separator = "{";
            for (name, field) in fields {
                let name = Value::from(name.as_str()).to_string();
                out.push_str(&format!("{separator}\n{inner}{name}: "));
                print(out, field, &inner, inner.len() + name.chars().count() + 2);
                separator = ",";
            }
            out.push_str(&format!("\n{indent}}}"));
        }
        _ => out.push_str(&line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
