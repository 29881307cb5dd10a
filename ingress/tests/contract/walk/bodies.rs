//! What cannot be read, and what breaks a rule of its schema.

use http::Method;
use serde_json::{Value, json};

use super::{Route, Walk, assert_refused};
use crate::common::contract::CONTRACT;

#[tokio::test]
async fn a_request_that_is_malformed_is_refused_everywhere() {
    let walk = Walk::start().await;
    let client = &walk.ready.client;
    for route in Route::all() {
        if route.is_read() {
            let path = walk.path(&route);
            let tenant = if route.in_tenant { "product_tenant_id=tenant-1&" } else { "" };
            let long = format!("product_tenant_id={}", "x".repeat(256));
            let mut queries = vec![format!("{tenant}colour=red")];
            if route.in_tenant {
                queries.extend(
                    [
                        "",
                        "product_tenant_id=",
                        &long,
                        "product_tenant_id=a%00",
                        "product_tenant_id=a&product_tenant_id=a",
                    ]
                    .map(str::to_owned),
                );
                queries.push(format!("{tenant}engine_tenant_id=x"));
            }
            for query in queries {
                let answer = walk.send(client.signed(Method::GET, &format!("{path}?{query}"), b"")).await;
                assert_refused(&answer, (400, "validation_failed"), &route, &query);
            }
            continue;
        }
        let deep = format!(r#"{{"product_tenant_id":"tenant-1","x":{}1{}}}"#, "[".repeat(40), "]".repeat(40));
        let deepest = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        for broken in [
            "",
            "{",
            "[]",
            "7",
            "\"x\"",
            "{} {}",
            r#"{"product_tenant_id":"tenant-1","product_tenant_id":"tenant-1"}"#,
            r#"{"product_tenant_id":"tenant-1","x\u0000":1}"#,
            r#"{"product_tenant_id":"tenant\u0000"}"#,
            r#"{"product_tenant_id":"tenant-1","x":1e999}"#,
            &deep,
            &deepest,
        ] {
            let answer = walk.with_body(&route, broken.as_bytes()).await;
            assert_refused(&answer, (400, "invalid_json"), &route, &broken.chars().take(60).collect::<String>());
        }
        assert_refused(&walk.with_body(&route, b"{\"a\":\"\xff\"}").await, (400, "invalid_json"), &route, "no UTF-8");
        let change = |name: &str, value: Value| {
            let mut body = route.body.clone();
            body[name] = value;
            body.to_string()
        };
        let mut without = route.body.clone();
        without.as_object_mut().unwrap().remove("product_tenant_id");
        for (case, body) in [
            ("no tenant", without.to_string()),
            ("a number for a tenant", change("product_tenant_id", json!(7))),
            ("a long tenant", change("product_tenant_id", json!("x".repeat(256)))),
            ("an empty tenant", change("product_tenant_id", json!(""))),
            ("a line break in the tenant", change("product_tenant_id", json!("a\nb"))),
            ("an unknown field", change("colour", json!("red"))),
        ] {
            let answer = walk.with_body(&route, body.as_bytes()).await;
            assert_refused(&answer, (400, "validation_failed"), &route, case);
        }
        for content_type in ["text/plain", "application/json; charset=latin1", "application/x-www-form-urlencoded"] {
            let mut request = walk.good(client, &route);
            request.headers_mut().insert("content-type", content_type.parse().unwrap());
            assert_refused(&walk.send(request).await, (415, "unsupported_media_type"), &route, content_type);
        }
        let mut request = walk.good(client, &route);
        request.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
        assert_refused(&walk.send(request).await, (415, "unsupported_media_type"), &route, "a compressed body");
        let mut request = walk.good(client, &route);
        request.headers_mut().insert("content-length", (route.body_max_bytes + 1).into());
        assert_refused(&walk.send(request).await, (413, "body_too_large"), &route, "a long body");
        let mut request = walk.good(client, &route);
        request.headers_mut().insert("idempotency-key", "a b".parse().unwrap());
        assert_refused(&walk.send(request).await, (400, "validation_failed"), &route, "a bad Idempotency-Key");
    }
}

/// Bodies that break one rule of the schema each, with the rule.
fn broken_bodies(route: &Route) -> Vec<(String, Value)> {
    let mut broken = Vec::new();
    let schema = fitting(route.schema, &route.body);
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    for name in required.iter().filter_map(Value::as_str) {
        let mut body = route.body.clone();
        body.as_object_mut().unwrap().remove(name);
        broken.push((format!("{name} left out"), body));
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let with = |value: Value| {
            let mut body = route.body.clone();
            body[name] = value;
            body
        };
        let field = kind_of(field);
        let kinds: Vec<&str> = match &field["type"] {
            Value::String(kind) => vec![kind],
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
            _ => continue,
        };
        let wrong = if kinds.contains(&"object") { json!("x") } else { json!({"x": 1}) };
        broken.push((format!("{name} of the wrong type"), with(wrong)));
        if kinds.contains(&"string") {
            if let Some(max) = field["maxLength"].as_u64().and_then(|max| usize::try_from(max).ok()) {
                broken.push((format!("{name} too long"), with(json!("x".repeat(max + 1)))));
            }
            if field["enum"].is_array() {
                broken.push((format!("{name} with an unknown word"), with(json!("no_such_word"))));
            }
            if field["format"].is_string() {
                broken.push((format!("{name} in another form"), with(json!("x"))));
            }
        }
        if kinds.contains(&"integer") {
            broken.push((format!("{name} with a fraction"), with(json!(1.5))));
        }
        if let Some(max) = field["maxItems"].as_u64().and_then(|max| usize::try_from(max).ok()) {
            let items: Vec<String> = (0..=max).map(|_| schemas::new_id().to_string()).collect();
            broken.push((format!("{name} with too many items"), with(json!(items))));
        }
    }
    broken
}

/// What a field may be but for null, behind a reference.
fn kind_of(field: &'static Value) -> &'static Value {
    let field = CONTRACT.resolve(field);
    match field["anyOf"].as_array().map(Vec::as_slice) {
        Some([kind, null]) if null["type"] == "null" => CONTRACT.resolve(kind),
        _ => field,
    }
}

/// The alternative that the example is an example of.
fn fitting(schema: &'static Value, example: &Value) -> &'static Value {
    let schema = CONTRACT.resolve(schema);
    let Some(alternatives) = schema["anyOf"].as_array() else { return schema };
    let names = |alternative: &Value| {
        example.as_object().unwrap().keys().all(|name| alternative["properties"].get(name).is_some())
    };
    alternatives.iter().map(|alternative| CONTRACT.resolve(alternative)).find(|alternative| names(alternative)).unwrap()
}

#[tokio::test]
async fn every_rule_of_every_body_schema_is_kept() {
    let walk = Walk::start().await;
    let mut tried = 0;
    for mut route in Route::all().into_iter().filter(|route| !route.is_read()) {
        route.body = walk.fill(&route.body);
        for (rule, body) in broken_bodies(&route) {
            let answer = walk.with_body(&route, body.to_string().as_bytes()).await;
            assert_refused(&answer, (400, "validation_failed"), &route, &rule);
            tried += 1;
        }
    }
    assert!(tried > 100, "{tried}");
}
