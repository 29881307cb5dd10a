//! Every registered route, against everything a caller can get wrong on the road. The list comes from the code, and what was
//! walked is committed in `walk.txt`: a route that is left out, or new, shows as a difference.

mod audited;
mod bodies;
mod callers;

use std::{collections::BTreeMap, fmt::Write as _};

use axum::body::Body;
use http::{Method, Request};
use ingress::pipeline::{KeyAccess, Operation};
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
    schema: &'static Value,
}

impl Route {
    fn all() -> Vec<Self> {
        ingress::operations().iter().filter_map(Self::of).collect()
    }

    fn of(operation: &Operation) -> Option<Self> {
        let KeyAccess { scope, in_tenant, body_max_bytes } = operation.access?;
        let verb = operation.method.as_str();
        let content = &CONTRACT.document()["paths"][operation.path][verb.to_lowercase()]["requestBody"]["content"];
        let json = &content["application/json"];
        let (body, schema) = (json["example"].clone(), &json["schema"]);
        Some(Self {
            method: operation.method.clone(),
            path: operation.path,
            scope,
            in_tenant,
            body_max_bytes,
            body,
            schema,
        })
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
            ("snippets", made("/v1/snippets", json!({"name": "foot", "body_html": "<hr>"}), "snippet_id").await),
            ("domains", domain.to_string()),
            ("senders", ready.sender.to_string()),
            ("campaigns", campaign),
            ("sends", send),
            ("segments", segment(client).await),
            ("sequences", sequence.clone()),
            (
                "enrollments",
                made("/v1/enrollments", json!({"sequence_id": sequence, "email": "eve@example.com"}), "enrollment_id")
                    .await,
            ),
            (
                "connections",
                made("/v1/connections", json!({"provider": "resend", "name": "R", "secret": "k"}), "connection_id")
                    .await,
            ),
            ("keys", made("/v1/keys", json!({"label": "K", "scopes": ["contacts:read"]}), "key_id").await),
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
    let mut walked: Vec<String> = ingress::operations()
        .iter()
        .map(|operation| {
            let who = operation.access.map_or("(open)", |access| access.scope);
            format!("{:6} {:44} {who}", operation.method.as_str(), operation.path)
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
async fn a_method_a_path_does_not_have_is_a_405_that_names_those_it_has() {
    let walk = Walk::start().await;
    let client = &walk.ready.client;
    let mut paths: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for operation in ingress::operations() {
        paths.entry(operation.path).or_default().push(operation.method.as_str());
    }
    // The assistant is off, so its endpoint is not there for any method.
    paths.remove(mcp::PATH);
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
