//! Callers that are refused: without credentials, with others' or spent ones, without the scope, for another tenant.

use axum::body::Body;
use chrono::{SecondsFormat, TimeDelta, Utc};
use http::Request;
use schemas::Environment;
use serde_json::json;
use uuid::Uuid;

use super::{Route, Walk, assert_refused, define_plan};
use crate::common::{Client, PRODUCT};

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
