//! Holds answers and requests against the OpenAPI document. Test clients use it for everything they receive, so that each test
//! proves the contract beside what it is about.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use jsonschema::Validator;
use serde_json::{Map, Value, json};

/// An answer as it came, with the request it answers.
#[derive(Debug, Clone, Copy)]
pub struct Exchange<'a> {
    /// The method, in upper case.
    pub method: &'a str,
    /// The path, without the query.
    pub path: &'a str,
    /// The body as sent.
    pub sent: &'a [u8],
    /// The status.
    pub status: u16,
    /// `Content-Type`, or nothing.
    pub content_type: &'a str,
    /// The body as received.
    pub received: &'a [u8],
}

/// The document, with its schemas compiled when they are first needed.
pub struct Contract {
    document: Value,
    compiled: Mutex<HashMap<String, Arc<Validator>>>,
}

impl std::fmt::Debug for Contract {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contract").finish_non_exhaustive()
    }
}

impl Contract {
    /// Of a document.
    pub fn new(document: Value) -> Self {
        Self { document, compiled: Mutex::default() }
    }

    /// The document.
    pub fn document(&self) -> &Value {
        &self.document
    }

    /// Whether an exchange is as documented; else what is not, in words.
    pub fn check(&self, exchange: &Exchange<'_>) -> Result<(), String> {
        let place = format!("{} {} answered {}", exchange.method, exchange.path, exchange.status);
        self.check_parts(exchange).map_err(|fault| {
            format!("{place}, which the document does not say: {fault}\n{}", String::from_utf8_lossy(exchange.received))
        })
    }

    fn check_parts(&self, exchange: &Exchange<'_>) -> Result<(), String> {
        let Some((template, item)) = self.path_item(exchange.path) else {
            return self.check_error(exchange, 404, "not_found");
        };
        let method = exchange.method.to_lowercase();
        // A GET answers HEAD, too, where there is nothing else.
        let method = if method == "head" && item.get("head").is_none() { "get" } else { method.as_str() };
        let Some(operation) = item.get(method) else {
            return self.check_error(exchange, 405, "method_not_allowed");
        };
        let status = exchange.status.to_string();
        let response = operation["responses"].get(&status).ok_or("the status is not among its answers")?;
        let response = self.resolve(response);
        if exchange.method != "HEAD" {
            self.check_content(response, exchange, &format!("{method} {template} {status}"))?;
        }
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        if (200..300).contains(&exchange.status) && body.is_object() {
            let sent = serde_json::from_slice(exchange.sent).map_err(|error| format!("an accepted body: {error}"))?;
            // Formats are what callers should send. What is taken is wider: an address may be padded and internationalised.
            self.validator(&format!("{method} {template}"), body, false)
                .and_then(|validator| verdict(&validator, &sent))
                .map_err(|fault| format!("the request was accepted, but {fault} in {sent}"))?;
        }
        Ok(())
    }

    fn check_error(&self, exchange: &Exchange<'_>, status: u16, code: &str) -> Result<(), String> {
        if exchange.status != status {
            return Err(format!("no such operation, so {status} is due"));
        }
        if exchange.method == "HEAD" {
            return Ok(());
        }
        let body: Value = serde_json::from_slice(exchange.received).map_err(|error| error.to_string())?;
        self.validate("error", &json!({"$ref": "#/components/schemas/Error"}), &body)?;
        if body["error"] == code { Ok(()) } else { Err(format!("{code} is due")) }
    }

    fn check_content(&self, response: &Value, exchange: &Exchange<'_>, key: &str) -> Result<(), String> {
        let Some(content) = response["content"].as_object() else {
            return if exchange.received.is_empty() { Ok(()) } else { Err("it has no body".to_owned()) };
        };
        let media = exchange.content_type.split(';').next().unwrap_or_default().trim();
        let schema = &content.get(media).ok_or_else(|| format!("not as {media:?}"))?["schema"];
        if media != "application/json" {
            return Ok(());
        }
        let body = serde_json::from_slice(exchange.received).map_err(|error| error.to_string())?;
        self.validate(key, schema, &body)
    }

    /// Validates a value against a schema of the document; `key` names the schema.
    ///
    /// # Errors
    /// Every fault, in words.
    pub fn validate(&self, key: &str, schema: &Value, value: &Value) -> Result<(), String> {
        verdict(&*self.validator(key, schema, true)?, value)
    }

    fn validator(&self, key: &str, schema: &Value, formats: bool) -> Result<Arc<Validator>, String> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = compiled.get(key) {
            return Ok(Arc::clone(known));
        }
        // References are resolved from the root, so the root carries what is referred to.
        let root = json!({"allOf": [schema], "components": {"schemas": self.schemas_reached(schema)}});
        let validator = jsonschema::options()
            .with_draft(jsonschema::Draft::Draft202012)
            .should_validate_formats(formats)
            .build(&root)
            .map_err(|error| format!("{key}: the schema itself: {error}"))?;
        let validator = Arc::new(validator);
        compiled.insert(key.to_owned(), Arc::clone(&validator));
        Ok(validator)
    }

    /// The schemas that a schema leads to, and no others: a validator holds a compiled copy of all it is given, and there are hundreds.
    fn schemas_reached(&self, schema: &Value) -> Map<String, Value> {
        let mut reached = Map::new();
        let mut open = vec![schema];
        while let Some(value) = open.pop() {
            if let Some(name) = value["$ref"].as_str().and_then(|path| path.strip_prefix("#/components/schemas/"))
                && !reached.contains_key(name)
            {
                let schema = &self.document["components"]["schemas"][name];
                reached.insert(name.to_owned(), schema.clone());
                open.push(schema);
            }
            match value {
                Value::Object(fields) => open.extend(fields.values()),
                Value::Array(items) => open.extend(items),
                _ => {}
            }
        }
        reached
    }

    /// The path of the document a path is one of; fixed segments win over parameters.
    pub fn path_item(&self, path: &str) -> Option<(&str, &Map<String, Value>)> {
        let paths = self.document["paths"].as_object()?;
        let fits = paths.iter().filter(|(template, _)| matches(template, path));
        let (template, item) = fits.min_by_key(|(template, _)| template.matches('{').count())?;
        Some((template, item.as_object()?))
    }

    /// What a reference stands for; anything else is itself.
    pub fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        let target = value["$ref"].as_str().and_then(|path| self.document.pointer(path.trim_start_matches('#')));
        target.unwrap_or(value)
    }
}

fn verdict(validator: &Validator, value: &Value) -> Result<(), String> {
    let faults: Vec<String> =
        validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    if faults.is_empty() { Ok(()) } else { Err(faults.join("; ")) }
}

fn matches(template: &str, path: &str) -> bool {
    let (mut wanted, mut given) = (template.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return true,
            (Some(wanted), Some(given)) if wanted == given || (wanted.starts_with('{') && !given.is_empty()) => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contract() -> Contract {
        let error = json!({
            "type": "object", "additionalProperties": false, "required": ["ok", "error"],
            "properties": {"ok": {"const": false}, "error": {"type": "string"}},
        });
        let answer = |schema: Value| json!({"description": "", "content": {"application/json": {"schema": schema}}});
        Contract::new(json!({
            "paths": {
                "/v1/things/{id}": {"get": {"responses": {
                    "200": answer(json!({"type": "object", "additionalProperties": false, "properties": {"ok": {"const": true}}})),
                    "404": {"$ref": "#/components/responses/Missing"},
                }}},
                "/v1/things/count": {"get": {"responses": {"200": answer(json!({"type": "integer"}))}}},
            },
            "components": {"schemas": {"Error": error, "Pair": {"items": {"$ref": "#/components/schemas/Pair"}}}, "responses": {
                "Missing": answer(json!({"allOf": [
                    {"$ref": "#/components/schemas/Error"}, {"properties": {"error": {"enum": ["thing_not_found"]}}},
                ]})),
            }},
        }))
    }

    fn verdict(method: &str, path: &str, status: u16, received: &str) -> bool {
        let content_type = "application/json; charset=utf-8";
        let exchange = Exchange { method, path, sent: b"", status, content_type, received: received.as_bytes() };
        contract().check(&exchange).is_ok()
    }

    #[test]
    fn only_what_is_documented_passes() {
        assert!(verdict("GET", "/v1/things/1", 200, r#"{"ok":true}"#));
        assert!(!verdict("GET", "/v1/things/1", 200, r#"{"ok":true,"more":1}"#), "an unknown field");
        assert!(!verdict("GET", "/v1/things/1", 201, r#"{"ok":true}"#), "an unknown status");
        assert!(verdict("GET", "/v1/things/1", 404, r#"{"ok":false,"error":"thing_not_found"}"#));
        assert!(!verdict("GET", "/v1/things/1", 404, r#"{"ok":false,"error":"other"}"#), "an unknown code");
        assert!(verdict("GET", "/v1/things/count", 200, "3"), "a fixed segment wins");
        assert!(verdict("GET", "/v1/nothing", 404, r#"{"ok":false,"error":"not_found"}"#));
        assert!(verdict("PUT", "/v1/things/1", 405, r#"{"ok":false,"error":"method_not_allowed"}"#));
        assert!(!verdict("PUT", "/v1/things/1", 200, r#"{"ok":true}"#), "an unknown method");
    }

    #[test]
    fn a_validator_holds_only_the_schemas_it_reaches() {
        let reached = |name: &str| {
            let schema = json!({"properties": {"a": {"$ref": format!("#/components/schemas/{name}")}}});
            contract().schemas_reached(&schema).keys().cloned().collect::<Vec<_>>()
        };
        assert_eq!((reached("Error"), reached("Pair")), (vec!["Error".to_owned()], vec!["Pair".to_owned()]));
    }
}
