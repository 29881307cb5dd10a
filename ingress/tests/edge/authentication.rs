//! The credentials that are accepted, as a table, and what the limits hold against.

use std::{sync::Arc, time::Duration};

use axum::body::Body;
use chrono::{SecondsFormat, TimeDelta, Utc};
use http::{Method, Request};
use ingress::Settings;
use schemas::Environment;
use serde_json::json;

use crate::common::{Client, Edge, PRODUCT, TENANT, send, settings};

const TARGET: &str = "/v1/contacts?product_tenant_id=tenant-1";

fn request(pairs: &[(&str, &str)]) -> Request<Body> {
    let mut builder = Request::builder().uri(TARGET);
    for (name, value) in pairs {
        builder = builder.header(*name, *value);
    }
    builder.body(Body::empty()).unwrap()
}

/// A good signed request, bent.
fn bent(client: &Client, bend: impl FnOnce(&mut Request<Body>)) -> Request<Body> {
    let mut request = client.signed(Method::GET, TARGET, b"");
    bend(&mut request);
    request
}

fn set(name: &'static str, value: &str) -> impl FnOnce(&mut Request<Body>) {
    move |request| {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
}

#[tokio::test]
async fn every_case_of_the_authentication_table_has_its_answer() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let bearer = format!("Bearer {}", client.key);
    let other_key = edge.key(PRODUCT, Environment::Production, schemas::scope::ALL).await;
    let revoked = edge.key(PRODUCT, Environment::Production, schemas::scope::ALL).await;
    let expired = edge.key(PRODUCT, Environment::Production, schemas::scope::ALL).await;
    retire(&edge, &revoked, "update api_keys set revoked_at = now() where hash = $1").await;
    retire(&edge, &expired, "update api_keys set expires_at = now() - interval '1 second' where hash = $1").await;
    let unknown = schemas::key::generate(PRODUCT, Environment::Production);
    let at = |minutes| (Utc::now() + TimeDelta::minutes(minutes)).to_rfc3339_opts(SecondsFormat::Secs, true);
    let signed = |key: &str| Client { key: key.to_owned(), ..client.clone() }.signed(Method::GET, TARGET, b"");
    let claims = |product: &str, environment| {
        Client { product: product.to_owned(), environment, ..client.clone() }.signed(Method::GET, TARGET, b"")
    };
    let timed =
        |timestamp: &str| client.signed_with(Method::GET, TARGET, b"", timestamp, &uuid::Uuid::new_v4().to_string());
    let nonce = |nonce: &str| client.signed_with(Method::GET, TARGET, b"", &at(0), nonce);

    let table: Vec<(&str, Request<Body>, (u16, &str))> = vec![
        ("no credentials", request(&[]), (401, "missing_credentials")),
        ("basic", request(&[("authorization", "Basic eDp5")]), (401, "missing_credentials")),
        ("no nonce", bent(&client, |r| drop(r.headers_mut().remove("x-service-nonce"))), (401, "missing_credentials")),
        ("both modes", bent(&client, set("authorization", &bearer)), (400, "ambiguous_credentials")),
        (
            "a header twice",
            bent(&client, |r| assert!(r.headers_mut().append("x-service-product", PRODUCT.parse().unwrap()))),
            (400, "ambiguous_credentials"),
        ),
        ("unknown key", signed(&unknown), (401, "invalid_api_key")),
        ("mistyped key", signed("svc_live_crm_x"), (401, "invalid_api_key")),
        ("revoked key", signed(&revoked), (401, "invalid_api_key")),
        ("expired key", signed(&expired), (401, "invalid_api_key")),
        ("revoked bearer", request(&[("authorization", &format!("Bearer {revoked}"))]), (401, "invalid_api_key")),
        ("six minutes old", timed(&at(-6)), (401, "stale_timestamp")),
        ("six minutes ahead", timed(&at(6)), (401, "stale_timestamp")),
        ("four minutes old", timed(&at(-4)), (200, "")),
        ("unreadable time", timed("yesterday"), (401, "stale_timestamp")),
        ("other key's signature", bent(&client, set("x-service-api-key", &other_key)), (401, "invalid_signature")),
        ("no hex", bent(&client, set("x-service-signature", "sha256=xyz")), (401, "invalid_signature")),
        ("no scheme", bent(&client, set("x-service-signature", &"a".repeat(64))), (401, "invalid_signature")),
        (
            "another path",
            bent(&client, |r| *r.uri_mut() = "/v1/fields?product_tenant_id=tenant-1".parse().unwrap()),
            (401, "invalid_signature"),
        ),
        ("another method", bent(&client, |r| *r.method_mut() = Method::HEAD), (401, "")),
        ("a long nonce", nonce(&"n".repeat(129)), (401, "replayed_nonce")),
        ("the longest nonce", nonce(&"n".repeat(128)), (200, "")),
        ("another product", claims("shop", Environment::Production), (403, "product_mismatch")),
        ("another environment", claims(PRODUCT, Environment::Sandbox), (403, "environment_mismatch")),
        ("good", client.signed(Method::GET, TARGET, b""), (200, "")),
        ("good bearer", request(&[("authorization", &bearer)]), (200, "")),
    ];
    for (name, request, expected) in table {
        let answer = client.send(request).await;
        assert_eq!(answer.refusal(), expected, "{name}: {}", answer.body);
        assert!(!answer.header("x-request-id").is_empty(), "{name}");
    }
}

async fn retire(edge: &Edge, key: &str, sql: &'static str) {
    sqlx::query(sql).bind(schemas::key::hash(key).as_slice()).execute(&edge.pool).await.unwrap();
}

#[tokio::test]
async fn a_stale_timestamp_is_answered_with_server_time() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let answer = client.send(client.signed_with(Method::GET, TARGET, b"", "2001-01-01T00:00:00Z", "n")).await;
    let year = Utc::now().format("%Y-").to_string();
    assert!(answer.text("detail").contains(&year), "{}", answer.body);
}

#[tokio::test]
async fn a_nonce_works_once_also_at_another_process_and_for_its_key_only() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let now = Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true);
    let again = |client: &Client| client.signed_with(Method::GET, TARGET, b"", &now, "nonce-1");
    assert_eq!(client.send(again(&client)).await.status, 200);
    assert_eq!(client.send(again(&client)).await.refusal(), (401, "replayed_nonce"));
    let restarted = client.at(edge.another().await);
    assert_eq!(restarted.send(again(&client)).await.refusal(), (401, "replayed_nonce"));
    let other = Client { key: edge.key(PRODUCT, Environment::Production, schemas::scope::ALL).await, ..client.clone() };
    assert_eq!(other.send(again(&other)).await.status, 200);
}

#[tokio::test]
async fn a_nonce_is_burnt_only_by_a_good_signature() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let now = Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true);
    let good = client.signed_with(Method::GET, TARGET, b"", &now, "nonce-1");
    let mut forged = client.signed_with(Method::GET, TARGET, b"", &now, "nonce-1");
    set("x-service-signature", &format!("sha256={}", "0".repeat(64)))(&mut forged);
    assert_eq!(client.send(forged).await.refusal(), (401, "invalid_signature"));
    assert_eq!(client.send(good).await.status, 200);
}

#[tokio::test]
async fn of_many_requests_with_one_nonce_at_once_one_passes() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let other = client.at(edge.another().await);
    let now = Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true);
    let requests = (0..16).map(|n| {
        let at = if n % 2 == 0 { client.clone() } else { other.clone() };
        let request = client.signed_with(Method::GET, TARGET, b"", &now, "nonce-1");
        async move { at.send(request).await.status.as_u16() }
    });
    let statuses = futures::future::join_all(requests).await;
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
}

#[tokio::test]
async fn a_changed_body_is_not_what_was_signed() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let body = br#"{"product_tenant_id":"tenant-1","email":"ann@example.com"}"#;
    let mut request = client.signed(Method::POST, "/v1/contacts", body);
    *request.body_mut() = Body::from(r#"{"product_tenant_id":"tenant-1","email":"eve@example.com"}"#);
    assert_eq!(client.send(request).await.refusal(), (401, "invalid_signature"));
    assert_eq!(edge.count("select count(*) from contacts").await, 0);
}

#[tokio::test]
async fn a_key_does_only_what_its_scopes_say() {
    let edge = Edge::start().await;
    edge.link(PRODUCT, Environment::Production, TENANT).await;
    let client = edge.client().await;
    let writer = Client { key: edge.key(PRODUCT, Environment::Production, &["contacts:write"]).await, ..client };
    let read = writer.get("/v1/contacts").await;
    assert_eq!(read.refusal(), (403, "missing_scope:contacts:read"));
    let written = writer.post("/v1/contacts", serde_json::json!({"email": "ann@example.com"})).await;
    assert_eq!(written.status, 201);
}

#[tokio::test]
async fn the_rate_limit_holds_over_several_processes() {
    let mut settings = settings();
    settings.rate_limit_per_minute = 5;
    let edge = Edge::with(settings).await;
    let first = edge.client().await;
    let second = first.at(edge.another().await);
    for number in 0..5 {
        let at = if number % 2 == 0 { &first } else { &second };
        let answer = at.get("/v1/contacts").await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("ratelimit-policy"), "\"key\";q=5;w=60");
        assert_eq!(answer.header("x-ratelimit-limit"), "5");
        assert_eq!(answer.header("x-ratelimit-remaining"), (4 - number).to_string());
        assert!(answer.header("ratelimit").starts_with(&format!("\"key\";r={};t=", 4 - number)));
    }
    for at in [&first, &second] {
        let answer = at.get("/v1/contacts").await;
        assert_eq!(answer.refusal(), (429, "rate_limit_exceeded"));
        let seconds: u64 = answer.header("retry-after").parse().unwrap();
        assert!((1..=60).contains(&seconds));
    }
    let other = Client { key: edge.key(PRODUCT, Environment::Production, schemas::scope::ALL).await, ..first.clone() };
    assert_eq!(other.get("/v1/contacts").await.status, 200, "the limit is per key");
}

#[tokio::test]
async fn a_limit_of_zero_is_no_limit() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for _ in 0..30 {
        let answer = client.get("/v1/contacts").await;
        assert_eq!((answer.status.as_u16(), answer.header("x-ratelimit-limit")), (200, ""));
    }
}

#[tokio::test]
async fn a_key_bound_to_a_tenant_sees_no_other() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    edge.link(PRODUCT, Environment::Production, "tenant-2").await;
    let key = edge.key(PRODUCT, Environment::Production, schemas::scope::ALL).await;
    sqlx::query("update api_keys set tenant_id = $2 where hash = $1")
        .bind(schemas::key::hash(&key).as_slice())
        .bind(client.tenant)
        .execute(&edge.pool)
        .await
        .unwrap();
    let bound = Client { key, ..client };
    assert_eq!(bound.get("/v1/contacts").await.status, 200);
    let elsewhere = Client { product_tenant_id: "tenant-2".to_owned(), ..bound };
    assert_eq!(elsewhere.get("/v1/contacts").await.refusal(), (404, "tenant_not_found"));
}

#[tokio::test]
async fn the_day_of_a_keys_last_use_is_noted() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.get("/v1/contacts").await;
    assert_eq!(edge.count("select count(*) from api_keys where last_used_on is not null").await, 1);
}

#[tokio::test]
async fn what_is_kept_for_a_while_is_swept_and_no_sooner() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.get("/v1/contacts").await;
    client.post_once("k", "/v1/contacts", serde_json::json!({"email": "a@example.com"})).await;
    ingress::pipeline::auth::sweep::sweep(&edge.ingress.pool).await.unwrap();
    assert_eq!(edge.count("select count(*) from nonces").await, 2);
    sqlx::query("update nonces set seen_at = now() - interval '16 minutes'").execute(&edge.pool).await.unwrap();
    sqlx::query("update idempotency_keys set created_at = now() - interval '25 hours'")
        .execute(&edge.pool)
        .await
        .unwrap();
    ingress::pipeline::auth::sweep::sweep(&edge.ingress.pool).await.unwrap();
    assert_eq!(edge.count("select count(*) from nonces").await, 0);
    assert_eq!(edge.count("select count(*) from idempotency_keys").await, 0);
}

#[tokio::test]
async fn an_expired_key_that_is_being_claimed_anew_stays() {
    let edge = Edge::start().await;
    sqlx::query(
        "insert into idempotency_keys (key_id, idempotency_key, fingerprint, locked_until, created_at)
         values (gen_random_uuid(), 'k', sha256(''), now(), now() - interval '2 days')",
    )
    .execute(&edge.pool)
    .await
    .unwrap();
    let mut claim = edge.pool.begin().await.unwrap();
    sqlx::query("update idempotency_keys set created_at = now()").execute(&mut *claim).await.unwrap();
    ingress::pipeline::auth::sweep::sweep(&edge.ingress.pool).await.unwrap();
    claim.commit().await.unwrap();
    assert_eq!(edge.count("select count(*) from idempotency_keys").await, 1);
}

#[tokio::test]
async fn what_is_swept_goes_in_slices() {
    let edge = Edge::start().await;
    let tables = [
        ("nonces", "(key_id, nonce, seen_at) select gen_random_uuid(), 'n', now() - interval '1 day'"),
        ("rate_counts", "(key_id, bucket, counts, allowed) select gen_random_uuid(), 1, '{1}', 120"),
        (
            "idempotency_keys",
            "(key_id, idempotency_key, fingerprint, locked_until, created_at)
             select gen_random_uuid(), 'k', sha256(''), now(), now() - interval '2 days'",
        ),
    ];
    let counted = "create table slices (name text, rows bigint);
         create function count_slice() returns trigger language plpgsql security definer as $$
         begin insert into slices select tg_table_name, count(*) from gone; return null; end $$;";
    sqlx::raw_sql(counted).execute(&edge.pool).await.unwrap();
    for (table, rows) in tables {
        let sql = format!(
            "insert into {table} {rows} from generate_series(1, 7000);
             create trigger slices after delete on {table} referencing old table as gone for each statement execute function count_slice();"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&edge.pool).await.unwrap();
    }
    ingress::pipeline::auth::sweep::sweep(&edge.ingress.pool).await.unwrap();
    for (table, _) in tables {
        let slices: Vec<i64> = sqlx::query_scalar("select rows from slices where name = $1 order by rows")
            .bind(table)
            .fetch_all(&edge.pool)
            .await
            .unwrap();
        assert_eq!(slices, [2_000, 5_000], "{table}");
    }
}

#[tokio::test]
async fn health_needs_no_credentials_and_unknown_paths_and_methods_answer_in_the_error_shape() {
    let edge = Edge::start().await;
    let router = ingress::router(Arc::clone(&edge.ingress));
    let at = |method: &str, path: &str| Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    let health = send(&router, at("GET", "/health")).await;
    // No streams in this test: the bus is there, JetStream knows nothing of us.
    assert_eq!((health.status.as_u16(), health.body["checks"]["database"].as_bool()), (200, Some(true)));
    assert_eq!(health.body["status"], "degraded");
    assert_eq!(send(&router, at("GET", "/v1/nowhere")).await.refusal(), (404, "not_found"));
    let wrong = send(&router, at("PUT", "/v1/contacts")).await;
    assert_eq!(wrong.refusal(), (405, "method_not_allowed"));
    assert!(wrong.header("allow").contains("POST"), "{:?}", wrong.headers);
}

#[tokio::test]
async fn health_is_probed_once_a_second_however_often_it_is_asked() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let database = async || {
        let health = client.send(Request::builder().uri("/health").body(Body::empty()).unwrap()).await;
        health.body["checks"]["database"].as_bool().unwrap()
    };
    assert!(database().await);
    tokio::time::pause();
    edge.lose_the_database();
    assert!(database().await, "as it was found a moment ago");
    tokio::time::advance(Duration::from_secs(2)).await;
    assert!(!database().await);
}

#[tokio::test]
async fn without_the_database_health_is_503_and_requests_are_unavailable() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    edge.ingress.pool.close().await;
    edge.lose_the_database();
    let health = client.send(Request::builder().uri("/health").body(Body::empty()).unwrap()).await;
    assert_eq!((health.refusal(), health.body["ok"].as_bool()), ((503, "unavailable"), Some(false)));
    let answer = client.get("/v1/contacts").await;
    assert_eq!(answer.refusal(), (503, "unavailable"));
    assert!(!answer.header("retry-after").is_empty());
}

#[tokio::test]
async fn a_write_whose_key_is_not_looked_up_in_time_is_answered_503() {
    let short = Duration::from_millis(500);
    let edge = Edge::with(Settings { http_request_timeout: short, http_body_timeout: short, ..settings() }).await;
    let client = edge.client().await;
    let mut held = edge.pool.begin().await.unwrap();
    sqlx::query("lock table api_keys in access exclusive mode").execute(&mut *held).await.unwrap();
    let list = json!({"kind": "list", "name": "News"});
    let answer = tokio::time::timeout(Duration::from_secs(20), client.post("/v1/audiences", list)).await.unwrap();
    assert_eq!(answer.refusal(), (503, "unavailable"));
    held.rollback().await.unwrap();
}
