//! The document as a page to read: plain HTML without scripts, and nothing from elsewhere.

use std::{collections::BTreeMap, fmt::Write as _};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::resolve;

const STYLE: &str = "\
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:62rem;padding:1rem}\
code,pre{font:14px/1.4 ui-monospace,monospace}pre{overflow:auto;padding:.7rem;border:1px solid #8884;border-radius:.3rem}\
details{border:1px solid #8884;border-radius:.3rem;margin:.4rem 0;padding:.3rem .7rem}summary{cursor:pointer}\
summary code{font-weight:600}table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #8884;padding:.25rem .5rem;\
text-align:left;vertical-align:top}nav a{margin-right:.8rem}";

/// The Content-Security-Policy: our own style and nothing else.
pub(super) fn policy() -> String {
    let digest = STANDARD.encode(Sha256::digest(STYLE.as_bytes()));
    format!(
        "default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

/// The page.
pub(super) fn render(document: &Value) -> String {
    let mut sections: BTreeMap<&str, Vec<(&str, &str, &Value)>> = BTreeMap::new();
    for (path, item) in document["paths"].as_object().into_iter().flatten() {
        for (verb, operation) in item.as_object().into_iter().flatten() {
            let tag = operation["tags"][0].as_str().unwrap_or_default();
            sections.entry(tag).or_default().push((path, verb, operation));
        }
    }
    let mut out = String::new();
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>Postrider API</title><style>{STYLE}</style></head><body><h1>Postrider API {}</h1>",
        escape(document["info"]["version"].as_str().unwrap_or_default()),
    );
    prose(&mut out, document["info"]["description"].as_str().unwrap_or_default());
    out.push_str("<p>For machines: <a href=\"/openapi.json\">openapi.json</a>.</p><nav>");
    for tag in sections.keys() {
        let _ = write!(out, "<a href=\"#{0}\">{0}</a>", escape(tag));
    }
    out.push_str("</nav>");
    for (tag, operations) in &sections {
        let _ = write!(out, "<h2 id=\"{0}\">{0}</h2>", escape(tag));
        for (path, verb, operation) in operations {
            self::operation(&mut out, document, path, verb, operation);
        }
    }
    out.push_str("<h2 id=\"schemas\">Schemas</h2>");
    for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
        let _ = write!(out, "<details id=\"schema-{0}\"><summary><code>{0}</code></summary>", escape(name));
        code(&mut out, schema);
        out.push_str("</details>");
    }
    out.push_str("</body></html>\n");
    out
}

fn operation(out: &mut String, document: &Value, path: &str, verb: &str, operation: &Value) {
    let text = |name: &str| escape(operation[name].as_str().unwrap_or_default());
    let _ = write!(
        out,
        "<details id=\"{}\"><summary><code>{} {}</code> {}</summary>",
        text("operationId"),
        verb.to_uppercase(),
        escape(path),
        text("summary"),
    );
    prose(out, operation["description"].as_str().unwrap_or_default());
    if let Some(scope) = operation["security"][0]["bearer"][0].as_str() {
        let _ = write!(out, "<p>Scope: <code>{}</code></p>", escape(scope));
    }
    parameters(out, document, operation);
    let body = &operation["requestBody"]["content"]["application/json"];
    if body.is_object() {
        out.push_str("<h4>Body</h4>");
        code(out, &body["example"]);
        folded(out, "Schema", resolve(document, &body["schema"]));
    }
    out.push_str("<h4>Answers</h4>");
    for (status, response) in operation["responses"].as_object().into_iter().flatten() {
        answer(out, document, status, resolve(document, response));
    }
    out.push_str("</details>");
}

fn parameters(out: &mut String, document: &Value, operation: &Value) {
    let Some(parameters) = operation["parameters"].as_array() else { return };
    out.push_str("<h4>Parameters</h4><table><tr><th>name</th><th>in</th><th>value</th><th></th></tr>");
    for parameter in parameters {
        let parameter = resolve(document, parameter);
        let text = |name: &str| escape(parameter[name].as_str().unwrap_or_default());
        let needed = if parameter["required"] == true { " (required)" } else { "" };
        let _ = write!(
            out,
            "<tr><td><code>{}</code>{needed}</td><td>{}</td><td><code>{}</code></td><td>{}</td></tr>",
            text("name"),
            text("in"),
            escape(&parameter["schema"].to_string()),
            text("description"),
        );
    }
    out.push_str("</table>");
}

fn answer(out: &mut String, document: &Value, status: &str, response: &Value) {
    let description = escape(response["description"].as_str().unwrap_or_default());
    let content = &response["content"]["application/json"];
    let codes = content["schema"]["allOf"][1]["properties"]["error"]["enum"].as_array();
    match codes {
        Some(codes) => {
            let codes: Vec<String> =
                codes.iter().filter_map(Value::as_str).map(|code| format!("<code>{}</code>", escape(code))).collect();
            let _ = write!(out, "<p><strong>{status}</strong> {}</p>", codes.join(", "));
        }
        None => {
            let _ = write!(out, "<p><strong>{status}</strong> {description}</p>");
            if content.is_object() {
                code(out, &content["example"]);
                folded(out, "Schema", resolve(document, &content["schema"]));
            }
        }
    }
}

fn folded(out: &mut String, title: &str, value: &Value) {
    let _ = write!(out, "<details><summary>{title}</summary>");
    code(out, value);
    out.push_str("</details>");
}

fn code(out: &mut String, value: &Value) {
    let _ = write!(out, "<pre>{}</pre>", escape(&format!("{value:#}")));
}

/// Paragraphs; what stands between backticks is code.
fn prose(out: &mut String, text: &str) {
    for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.is_empty()) {
        out.push_str("<p>");
        for (position, piece) in paragraph.split('`').enumerate() {
            let piece = escape(piece);
            let _ = if position % 2 == 1 { write!(out, "<code>{piece}</code>") } else { write!(out, "{piece}") };
        }
        out.push_str("</p>");
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openapi::{document, operations};

    #[test]
    fn the_page_shows_every_operation_and_needs_nothing_from_elsewhere() {
        let operations = operations();
        let page = render(&document(&operations));
        for operation in &operations {
            let id = (operation.doc)().id();
            assert!(page.contains(&format!("<details id=\"{id}\">")), "{id}");
        }
        for forbidden in ["<script", " src=", "http://", "@import", "url("] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
    }

    #[test]
    fn what_the_page_shows_is_escaped() {
        let mut out = String::new();
        prose(&mut out, "a <b> & `c<d>`");
        assert_eq!(out, "<p>a &lt;b&gt; &amp; <code>c&lt;d&gt;</code></p>");
    }
}
