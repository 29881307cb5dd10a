//! Every registered route, against everything a caller can get wrong on the road. The list comes from the code, and what was
//! walked is committed in `walk.txt`: a route that is left out, or new, shows as a difference.

use std::{collections::BTreeMap, fmt::Write as _};

use axum::body::Body;
use chrono::{SecondsFormat, TimeDelta, Utc};
use http::{Method, Request};
use ingress::{
    act::{Access, Operation, Verb},
    openapi,
};
use schemas::Environment;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    common::{Answer, Client, PRODUCT, contract::CONTRACT},
    fixtures::Ready,
};

/// A keyed route with an example of its body.
struct Route {
    method: Method,
    path: &'static str,
    scope: &'static str,
    in_tenant: bool,
    body_max_bytes: usize,
    /// With `product_tenant_id`; null for reads.
    body: Value,
    /// The schema of the body; null for reads.
    schema: Value,
}

impl Route {
    fn all() -> Vec<Self> {
        openapi::operations().iter().filter_map(Self::of).collect()
    }

    fn of(operation: &Operation) -> Option<Self> {
        let Access::Key { scope, in_tenant, body_max_bytes } = operation.access else { return None };
        let verb = operation.verb.as_str();
        let content = &CONTRACT.document()["paths"][operation.path][verb.to_lowercase()]["requestBody"]["content"];
        let json = &content["application/json"];
        let method = match operation.verb {
            Verb::Get | Verb::Head => Method::GET,
            Verb::Post => Method::POST,
            Verb::Patch => Method::PATCH,
            Verb::Delete => Method::DELETE,
        };
        let (body, schema) = (json["example"].clone(), json["schema"].clone());
        Some(Self { method, path: operation.path, scope, in_tenant, body_max_bytes, body, schema })
    }

    fn is_read(&self) -> bool {
        self.method == Method::GET
    }

    fn place(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

/// One walk: who walks, and the ids of what there is.
struct Walk {
    ready: Ready,
    objects: BTreeMap<&'static str, String>,
}

impl Walk {
    async fn start() -> Self {
        let mut ready = Ready::start().await;
        let scopes: Vec<&str> =
            schemas::scope::ALL.iter().copied().chain([schemas::scope::PLATFORM_HEALTH_READ]).collect();
        ready.client.key = ready.edge.key(PRODUCT, Environment::Production, &scopes).await;
        let client = &ready.client;
        let made = async |path: &str, body: Value, id: &str| client.post(path, body).await.text(id);
        let campaign = ready.campaign(json!({})).await;
        let send = ready.batch(&campaign, &["sent"]).await[0].to_string();
        ready.set_status(&campaign, "draft").await;
        let domain: Uuid = sqlx::query_scalar("select id from domains").fetch_one(&ready.edge.pool).await.unwrap();
        let steps = json!([{"step_type": "wait", "delay_amount": 9, "delay_unit": "days"}]);
        let sequence =
            made("/v1/sequences", json!({"name": "S", "activate": true, "steps": steps}), "sequence_id").await;
        let objects = BTreeMap::from([
            ("contacts", made("/v1/contacts", json!({"email": "ann@example.com"}), "contact_id").await),
            ("audiences", made("/v1/audiences", json!({"kind": "tag", "name": "vip"}), "audience_id").await),
            ("fields", define_plan(client).await),
            ("imports", made("/v1/imports", json!({"csv": "email\nbob@example.com\n"}), "import_id").await),
            ("templates", ready.template(json!({})).await),
            ("domains", domain.to_string()),
            ("campaigns", campaign),
            ("sends", send),
            ("segments", segment(client).await),
            ("sequences", sequence.clone()),
            (
                "enrollments",
                made("/v1/enrollments", json!({"sequence_id": sequence, "email": "eve@example.com"}), "enrollment_id")
                    .await,
            ),
            ("outcomes", made("/v1/outcomes", json!({"dot_number": 1, "outcome_type": "bind"}), "outcome_id").await),
            (
                "webhooks",
                made("/v1/webhooks", json!({"url": "https://a.example/", "events": ["email.sent"]}), "subscription_id")
                    .await,
            ),
        ]);
        Self { ready, objects }
    }

    /// A body that names what there is, so that nothing it names is missing before its rules are looked at.
    fn fill(&self, body: &Value) -> Value {
        let named = |name: &str| match name {
            "sender_profile_id" | "sender_id" => Some(self.ready.sender.to_string()),
            "list_id" => Some(self.ready.list.to_string()),
            "template_id" => self.objects.get("templates").cloned(),
            "contact_id" => self.objects.get("contacts").cloned(),
            "segment_id" => self.objects.get("segments").cloned(),
            "sequence_id" => self.objects.get("sequences").cloned(),
            _ => None,
        };
        let mut body = body.clone();
        for (name, value) in body.as_object_mut().into_iter().flatten() {
            if let Some(id) = named(name) {
                *value = json!(id);
            }
        }
        body
    }

    /// The path with the owner's object in it, where there is one.
    fn path(&self, route: &Route) -> String {
        let kind = route.path.strip_prefix("/v1/").and_then(|path| path.split('/').next()).unwrap_or_default();
        let nobody = schemas::new_id().to_string();
        route.path.replace("{id}", self.objects.get(kind).unwrap_or(&nobody))
    }

    fn target(&self, route: &Route, path: &str, tenant: &str) -> String {
        if route.is_read() && route.in_tenant { format!("{path}?product_tenant_id={tenant}") } else { path.to_owned() }
    }

    fn body(route: &Route) -> Vec<u8> {
        if route.is_read() { Vec::new() } else { route.body.to_string().into_bytes() }
    }

    /// A good request as far as the road goes.
    fn good(&self, client: &Client, route: &Route) -> Request<Body> {
        let target = self.target(route, &self.path(route), &client.product_tenant_id);
        client.signed(route.method.clone(), &target, &Self::body(route))
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        self.ready.client.send(request).await
    }

    async fn with_body(&self, route: &Route, body: &[u8]) -> Answer {
        self.send(self.ready.client.signed(route.method.clone(), &self.path(route), body)).await
    }
}

/// The field that examples use.
async fn define_plan(client: &Client) -> String {
    client.post("/v1/fields", json!({"key": "plan", "label": "Plan", "type": "string"})).await.text("field_id")
}

/// A segment, where there are segments.
async fn segment(client: &Client) -> String {
    let known = CONTRACT.document()["paths"]["/v1/segments"]["post"].is_object();
    let body = json!({"name": "Pros", "rule": {"field": "first_name", "op": "exists"}});
    if known { client.post("/v1/segments", body).await.text("segment_id") } else { schemas::new_id().to_string() }
}

fn assert_refused(answer: &Answer, expected: (u16, &str), route: &Route, case: &str) {
    assert_eq!(answer.refusal(), expected, "{} with {case}: {}", route.place(), answer.body);
}

#[tokio::test]
async fn every_route_is_walked() {
    let mut walked: Vec<String> = openapi::operations()
        .iter()
        .map(|operation| {
            let who = operation.access.scope().unwrap_or("(open)");
            format!("{:6} {:44} {who}", operation.verb.as_str(), operation.path)
        })
        .collect();
    walked.sort();
    let mut text = String::new();
    for line in walked {
        writeln!(text, "{line}").unwrap();
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/contract/walk.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(file, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(file).unwrap_or_default(), text, "run with UPDATE=1, look at it, commit it");
}

#[tokio::test]
async fn a_caller_who_may_not_is_told_why_everywhere() {
    let walk = Walk::start().await;
    let edge = &walk.ready.edge;
    let client = &walk.ready.client;
    let shop = edge.key("shop", Environment::Production, schemas::scope::ALL).await;
    let sandbox = edge.key(PRODUCT, Environment::Sandbox, schemas::scope::ALL).await;
    for route in Route::all() {
        let strip = |mut request: Request<Body>| {
            for name in ["product", "environment", "api-key", "timestamp", "nonce", "signature"] {
                request.headers_mut().remove(format!("x-service-{name}"));
            }
            request
        };
        let bearer = format!("Bearer {}", client.key);

        let nobody = walk.send(strip(walk.good(client, &route))).await;
        assert_refused(&nobody, (401, "missing_credentials"), &route, "no credentials");

        let mut both = walk.good(client, &route);
        both.headers_mut().insert("authorization", bearer.parse().unwrap());
        assert_refused(&walk.send(both).await, (400, "ambiguous_credentials"), &route, "both modes");

        let known: Vec<&str> = schemas::scope::ALL.iter().copied().filter(|scope| *scope != route.scope).collect();
        let poor = Client { key: edge.key(PRODUCT, Environment::Production, &known).await, ..client.clone() };
        let missing = format!("missing_scope:{}", route.scope);
        assert_refused(&walk.send(walk.good(&poor, &route)).await, (403, &missing), &route, "every other scope");

        let scopes = [route.scope];
        let only = Client { key: edge.key(PRODUCT, Environment::Production, &scopes).await, ..client.clone() };
        let mut unsigned = strip(walk.good(&only, &route));
        unsigned.headers_mut().insert("authorization", format!("Bearer {}", only.key).parse().unwrap());
        let admitted = walk.send(unsigned).await;
        let (status, code) = admitted.refusal();
        assert!(status != 401 && !code.starts_with("missing_scope"), "{} in bearer mode: {code}", route.place());

        let other_product = Client { key: shop.clone(), ..client.clone() };
        let answer = walk.send(walk.good(&other_product, &route)).await;
        assert_refused(&answer, (403, "product_mismatch"), &route, "another product's key");
        let other_environment = Client { key: sandbox.clone(), ..client.clone() };
        let answer = walk.send(walk.good(&other_environment, &route)).await;
        assert_refused(&answer, (403, "environment_mismatch"), &route, "another environment's key");

        let (method, path) = (route.method.clone(), walk.path(&route));
        let target = walk.target(&route, &path, &client.product_tenant_id);
        let body = Walk::body(&route);
        let now = |minutes| (Utc::now() + TimeDelta::minutes(minutes)).to_rfc3339_opts(SecondsFormat::Millis, true);
        let nonce = Uuid::new_v4().to_string();
        let stale = client.signed_with(method.clone(), &target, &body, &now(-6), &nonce);
        assert_refused(&walk.send(stale).await, (401, "stale_timestamp"), &route, "an old timestamp");

        let mut changed = walk.good(client, &route);
        *changed.body_mut() = Body::from(r#"{"product_tenant_id":"tenant-1","changed":true}"#);
        assert_refused(&walk.send(changed).await, (401, "invalid_signature"), &route, "a changed body");

        let elsewhere = client.signed(method.clone(), &format!("{path}x"), &body);
        let mut changed = walk.good(client, &route);
        *changed.headers_mut() = elsewhere.headers().clone();
        assert_refused(&walk.send(changed).await, (401, "invalid_signature"), &route, "a changed path");

        // The body is not JSON, so that the first of the two changes nothing and the second is stopped before it is read.
        let first = client.signed_with(method.clone(), &target, b"-", &now(0), &nonce);
        walk.send(first).await;
        let again = client.signed_with(method, &target, b"-", &now(0), &nonce);
        assert_refused(&walk.send(again).await, (401, "replayed_nonce"), &route, "a nonce seen before");
    }
}

#[tokio::test]
async fn a_tenant_that_is_not_the_callers_is_refused_everywhere() {
    let walk = Walk::start().await;
    let edge = &walk.ready.edge;
    let client = &walk.ready.client;
    let other = edge.link(PRODUCT, Environment::Production, "tenant-2").await;
    let same_product = edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    let other_product = edge.client_for("shop", Environment::Production, "tenant-1").await;
    let other_environment = edge.client_for(PRODUCT, Environment::Sandbox, "tenant-1").await;
    for stranger in [&same_product, &other_product, &other_environment] {
        define_plan(stranger).await;
    }
    for route in Route::all().iter().filter(|route| route.in_tenant) {
        let unlinked = Client { product_tenant_id: "nobody".to_owned(), ..client.clone() };
        let mut body = route.body.clone();
        let (target, sent) = if route.is_read() {
            (walk.target(route, &walk.path(route), "nobody"), Vec::new())
        } else {
            body["product_tenant_id"] = json!("nobody");
            (walk.path(route), body.to_string().into_bytes())
        };
        let answer = walk.send(unlinked.signed(route.method.clone(), &target, &sent)).await;
        assert_refused(&answer, (404, "tenant_not_found"), route, "an unlinked tenant");

        let (target, sent) = if route.is_read() {
            let target = walk.target(route, &walk.path(route), &client.product_tenant_id);
            (format!("{target}&engine_tenant_id={other}"), Vec::new())
        } else {
            let mut body = route.body.clone();
            body["engine_tenant_id"] = json!(other);
            (walk.path(route), body.to_string().into_bytes())
        };
        let answer = walk.send(client.signed(route.method.clone(), &target, &sent)).await;
        assert_refused(&answer, (403, "tenant_mismatch"), route, "another engine_tenant_id");

        if route.path.contains("{id}") {
            // What is another's looks like what never was.
            let path = walk.path(route);
            let mut seen = Vec::new();
            for stranger in [&same_product, &other_product, &other_environment] {
                for path in [path.clone(), route.path.replace("{id}", &schemas::new_id().to_string())] {
                    let mut body = route.body.clone();
                    body["product_tenant_id"] = json!(stranger.product_tenant_id);
                    let sent = if route.is_read() { Vec::new() } else { body.to_string().into_bytes() };
                    let target = walk.target(route, &path, &stranger.product_tenant_id);
                    let answer = stranger.send(stranger.signed(route.method.clone(), &target, &sent)).await;
                    assert_eq!(answer.status, 404, "{}: {}", route.place(), answer.body);
                    seen.push(answer.bytes);
                }
            }
            seen.dedup();
            assert_eq!(seen.len(), 1, "{}", route.place());
            for odd in ["0198C0DE-0000-7000-8000-000000000001", "0198c0de000070008000000000000001", "x", "%00"] {
                let target = walk.target(route, &route.path.replace("{id}", odd), &client.product_tenant_id);
                let answer = walk.send(client.signed(route.method.clone(), &target, &Walk::body(route))).await;
                assert_eq!(answer.status, 404, "{} with id {odd}: {}", route.place(), answer.body);
            }
        }
    }
}

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
    let schema = fitting(&route.schema, &route.body);
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
        let field = CONTRACT.resolve(field);
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

/// The alternative that the example is an example of.
fn fitting<'a>(schema: &'a Value, example: &Value) -> &'a Value {
    let Some(alternatives) = schema["anyOf"].as_array() else { return schema };
    let names = |alternative: &Value| {
        example.as_object().unwrap().keys().all(|name| alternative["properties"].get(name).is_some())
    };
    alternatives.iter().find(|alternative| names(alternative)).unwrap()
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

#[tokio::test]
async fn a_method_a_path_does_not_have_is_a_405_that_names_those_it_has() {
    let walk = Walk::start().await;
    let client = &walk.ready.client;
    let mut paths: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for operation in openapi::operations() {
        paths.entry(operation.path).or_default().push(operation.verb.as_str());
    }
    for (path, verbs) in paths {
        let target = path.replace("{id}", &schemas::new_id().to_string()).replace("{token}", "x");
        for method in ["PUT", "TRACE", "OPTIONS", "POST", "PATCH", "DELETE"] {
            if verbs.contains(&method) {
                continue;
            }
            let request = Request::builder().method(method).uri(&target).body(Body::empty()).unwrap();
            let answer = client.send(request).await;
            assert_eq!(answer.refusal(), (405, "method_not_allowed"), "{method} {path}");
            let allowed: Vec<&str> = answer.header("allow").split(',').map(str::trim).collect();
            for verb in &verbs {
                assert!(allowed.contains(verb), "{method} {path} allows {allowed:?}, has {verb}");
            }
        }
        let unknown = client.send(client.signed(Method::GET, &format!("{target}/no/such/path"), b"")).await;
        assert_eq!(unknown.refusal(), (404, "not_found"), "{path}");
    }
}
