//! Every endpoint asks for its scope, and for credentials at all.

use axum::body::Body;
use http::{Method, Request};
use schemas::Environment;
use serde_json::json;

use crate::common::{Client, Edge, PRODUCT, TENANT, send};

/// Method, path and scope, as the specification has them.
const ENDPOINTS: &[(Method, &str, &str)] = &[
    (Method::GET, "/v1/templates", "templates:read"),
    (Method::POST, "/v1/templates", "templates:write"),
    (Method::GET, "/v1/templates/{id}", "templates:read"),
    (Method::PATCH, "/v1/templates/{id}", "templates:write"),
    (Method::DELETE, "/v1/templates/{id}", "templates:write"),
    (Method::GET, "/v1/domains", "domains:manage"),
    (Method::POST, "/v1/domains", "domains:manage"),
    (Method::POST, "/v1/domains/{id}/verify", "domains:manage"),
    (Method::GET, "/v1/senders", "senders:manage"),
    (Method::POST, "/v1/senders", "senders:manage"),
    (Method::GET, "/v1/campaigns", "campaigns:read"),
    (Method::POST, "/v1/campaigns", "campaigns:write"),
    (Method::GET, "/v1/campaigns/{id}", "campaigns:read"),
    (Method::PATCH, "/v1/campaigns/{id}", "campaigns:write"),
    (Method::POST, "/v1/campaigns/{id}/launch", "campaigns:launch"),
    (Method::GET, "/v1/campaigns/{id}/sends", "campaigns:read"),
    (Method::POST, "/v1/transactional", "email:send_one:create"),
    (Method::POST, "/v1/messages", "messages:send"),
    (Method::GET, "/v1/sends/{id}", "sends:read"),
    (Method::GET, "/v1/sequences", "sequences:read"),
    (Method::POST, "/v1/sequences", "sequences:write"),
    (Method::GET, "/v1/sequences/{id}", "sequences:read"),
    (Method::PATCH, "/v1/sequences/{id}", "sequences:write"),
    (Method::GET, "/v1/enrollments", "sequences:read"),
    (Method::POST, "/v1/enrollments", "sequences:enroll"),
    (Method::GET, "/v1/enrollments/{id}", "sequences:read"),
    (Method::DELETE, "/v1/enrollments/{id}", "sequences:enroll"),
];

async fn ask(client: &Client, method: &Method, path: &str) -> (u16, String) {
    let answer = match *method {
        Method::GET => client.get(path).await,
        _ => client.write(method.clone(), path, json!({}), &[]).await,
    };
    (answer.status.as_u16(), answer.body["error"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn every_endpoint_asks_for_its_own_scope_and_no_other() {
    let edge = Edge::start().await;
    let all = edge.client().await;
    let id = schemas::new_id().to_string();
    for (method, path, scope) in ENDPOINTS {
        let path = path.replace("{id}", &id);
        let others: Vec<&str> = schemas::scope::ALL.iter().copied().filter(|other| other != scope).collect();
        let without = Client { key: edge.key(PRODUCT, Environment::Production, &others).await, ..all.clone() };
        assert_eq!(ask(&without, method, &path).await, (403, format!("missing_scope:{scope}")), "{method} {path}");
        let only = Client { key: edge.key(PRODUCT, Environment::Production, &[*scope]).await, ..all.clone() };
        assert!(ask(&only, method, &path).await.0 < 500, "{method} {path}");
        assert_ne!(ask(&only, method, &path).await.0, 403, "{method} {path}");
    }
}

#[tokio::test]
async fn no_endpoint_answers_a_stranger() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id = schemas::new_id().to_string();
    for (method, path, _) in ENDPOINTS {
        let uri = format!("{}?product_tenant_id={TENANT}", path.replace("{id}", &id));
        let request = Request::builder().method(method.clone()).uri(&uri).body(Body::empty()).unwrap();
        assert_eq!(send(&client.router, request).await.refusal(), (401, "missing_credentials"), "{method} {uri}");
    }
}
