//! Assistants that are refused.

use axum::body::Body;
use http::{Method, Request};
use rstest::rstest;
use serde_json::{Value, json};

use crate::{
    common::{Answer, Edge, send},
    issuer::{SigningKey, unsigned},
    pilot::{CLIENT, Pilot, RESOURCE, USER, approve, list_tools, request},
};

fn refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.refusal(), (status, code), "{}", answer.body);
    assert_eq!(answer.body["ok"], json!(false));
    let challenge = answer.header("www-authenticate");
    if status == 401 {
        let metadata = "resource_metadata=\"https://mail.example.com/.well-known/oauth-protected-resource/mcp\"";
        assert!(challenge.starts_with("Bearer ") && challenge.contains(metadata), "{challenge}");
    }
}

#[tokio::test]
async fn without_an_issuer_there_is_no_endpoint() {
    let edge = Edge::start().await;
    let router = ingress::router(std::sync::Arc::clone(&edge.ingress));
    let answer = send(&router, request(Some("x"), list_tools().to_string())).await;
    assert_eq!(answer.refusal(), (404, "not_found"));
    for path in ["/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"] {
        let answer = send(&router, Request::get(path).body(Body::empty()).unwrap()).await;
        assert_eq!(answer.refusal(), (404, "not_found"));
    }
}

#[tokio::test]
async fn the_metadata_names_the_issuer() {
    let pilot = Pilot::start().await;
    for path in ["/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"] {
        let answer = pilot.send(Request::get(path).body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.body["resource"], json!(RESOURCE));
        assert_eq!(answer.body["authorization_servers"], json!([pilot.issuer.url]));
        assert_eq!(answer.body["scopes_supported"], json!(["mail:read", "mail:drafts"]));
    }
}

#[tokio::test]
async fn without_a_token_nobody_is_let_in() {
    let pilot = Pilot::start().await;
    refused(&pilot.send(request(None, list_tools().to_string())).await, 401, "missing_credentials");
    let mut basic = request(None, list_tools().to_string());
    basic.headers_mut().insert("authorization", "Basic eDp5".parse().unwrap());
    refused(&pilot.send(basic).await, 401, "missing_credentials");
    // An API key is not a token, whatever it may do elsewhere.
    let client = pilot.edge.client().await;
    refused(&pilot.post(&client.key, &list_tools()).await, 401, "invalid_token");
    assert_eq!(pilot.post(&pilot.token(), &list_tools()).await.status, 200);
}

#[rstest]
#[case::other_audience(json!({"aud": "https://mail.example.com/"}))]
#[case::other_audiences(json!({"aud": ["https://a.example.com", "https://b.example.com"]}))]
#[case::no_audience(json!({"aud": null}))]
#[case::other_issuer(json!({"iss": "https://id.example.com"}))]
#[case::issuers(json!({"iss": ["https://id.example.com"]}))]
#[case::no_issuer(json!({"iss": null}))]
#[case::expired(json!({"exp": 1_700_000_000}))]
#[case::no_end(json!({"exp": null}))]
#[case::an_end_in_words(json!({"exp": "never"}))]
#[case::not_yet(json!({"nbf": 4_000_000_000_u64}))]
#[case::a_start_in_words(json!({"nbf": "now"}))]
#[case::nobody(json!({"sub": null}))]
#[case::empty(json!({"sub": ""}))]
#[case::no_client(json!({"client_id": null}))]
#[case::two_clients(json!({"azp": "second-client"}))]
#[tokio::test]
async fn a_token_with_a_wrong_claim_is_refused(#[case] change: Value) {
    let pilot = Pilot::start().await;
    let token = pilot.key.sign(&pilot.claims(change));
    refused(&pilot.post(&token, &list_tools()).await, 401, "invalid_token");
}

#[tokio::test]
async fn a_token_that_the_issuer_did_not_sign_is_refused() {
    let pilot = Pilot::start().await;
    let claims = pilot.claims(json!({}));
    let header = |changes: Value| {
        let mut header = json!({"alg": "ES256", "typ": "at+jwt", "kid": "key-1"});
        header.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        header
    };
    let foreign = SigningKey::new("key-1");
    let elsewhere = SigningKey::new("key-9");
    let good = pilot.token();
    let mut parts: Vec<String> = good.split('.').map(str::to_owned).collect();
    parts[1] = unsigned(&pilot.claims(json!({"sub": "user-2"}))).split('.').nth(1).unwrap().to_owned();
    let forged = [
        ("none", unsigned(&claims)),
        ("the public key as a secret", pilot.key.confused(&claims)),
        ("another key under the same id", foreign.sign(&claims)),
        ("a key that is not published", elsewhere.sign(&claims)),
        ("another algorithm in the header", pilot.key.sign_with(&header(json!({"alg": "RS256"})), &claims)),
        ("a shared secret in the header", pilot.key.sign_with(&header(json!({"alg": "HS256"})), &claims)),
        ("no key id", pilot.key.sign_with(&header(json!({"kid": null})), &claims)),
        ("an ID token's type", pilot.key.sign_with(&header(json!({"typ": "logout+jwt"})), &claims)),
        ("a critical extension", pilot.key.sign_with(&header(json!({"crit": ["exp"]})), &claims)),
        ("a key of its own", foreign.sign_with(&header(json!({"jwk": foreign.published(), "kid": null})), &claims)),
        ("changed claims", parts.join(".")),
        ("cut short", good[..good.len() - 2].to_owned()),
        ("no token at all", "abc".to_owned()),
        ("nothing", String::new()),
        ("too long", "a".repeat(10_000)),
    ];
    for (what, token) in forged {
        let answer = pilot.post(&token, &list_tools()).await;
        assert_eq!(answer.refusal(), (401, "invalid_token"), "{what}");
    }
    assert_eq!(pilot.post(&good, &list_tools()).await.status, 200);
    assert_eq!(pilot.issuer.asked(), 1, "made-up key ids do not make us ask again and again");
}

#[tokio::test]
async fn a_symmetric_key_that_the_issuer_publishes_is_no_key() {
    let pilot = Pilot::start().await;
    let secret = json!({"kty": "oct", "kid": "key-1", "alg": "HS256", "k": "c2VjcmV0"});
    pilot.issuer.publish(vec![secret, json!({"kty": "new", "kid": "key-2"}), json!("nonsense")]);
    let answer = pilot.post(&pilot.key.confused(&pilot.claims(json!({}))), &list_tools()).await;
    assert_eq!(answer.refusal(), (401, "invalid_token"));
    assert_eq!(pilot.post(&pilot.token(), &list_tools()).await.refusal(), (401, "invalid_token"));
}

#[tokio::test]
async fn new_keys_of_the_issuer_are_found() {
    let pilot = Pilot::start().await;
    assert_eq!(pilot.post(&pilot.token(), &list_tools()).await.status, 200);
    let next = SigningKey::new("key-2");
    pilot.issuer.publish(vec![next.published()]);
    let token = next.sign(&pilot.claims(json!({})));
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while pilot.post(&token, &list_tools()).await.status != 200 {
        assert!(std::time::Instant::now() < deadline, "the new key is never found");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert_eq!(
        pilot.post(&pilot.token(), &list_tools()).await.refusal(),
        (401, "invalid_token"),
        "the old key is gone"
    );
    assert_eq!(pilot.issuer.asked(), 2);
}

#[tokio::test]
async fn an_issuer_that_is_away_is_a_503() {
    let key = SigningKey::new("key-1");
    let mut settings = crate::common::settings();
    settings.assistant = mcp::Settings {
        mcp_issuer: Some("http://127.0.0.1:9".to_owned()),
        mcp_resource: Some(RESOURCE.to_owned()),
        mcp_jwks_url: None,
        mcp_clients: vec![CLIENT.to_owned()],
        mcp_rate_per_minute: 60,
    };
    let edge = Edge::with(settings).await;
    let router = ingress::router(std::sync::Arc::clone(&edge.ingress));
    let answer = send(&router, request(Some(&key.sign(&json!({}))), list_tools().to_string())).await;
    assert_eq!((answer.refusal(), answer.header("retry-after")), ((503, "unavailable"), "5"));
}

#[rstest]
#[case::no_scope(json!({"scope": null}), "missing_scope:mail:read")]
#[case::other_scopes(json!({"scope": "openid mail:readers"}), "missing_scope:mail:read")]
#[case::only_drafts(json!({"scope": "mail:drafts"}), "missing_scope:mail:read")]
#[case::client_outside_the_pilot(json!({"client_id": "stranger"}), "client_not_allowed")]
#[case::another_user(json!({"sub": "user-2"}), "not_approved")]
#[case::another_client_of_the_pilot(json!({"client_id": "second-client"}), "not_approved")]
#[tokio::test]
async fn who_is_not_approved_is_refused(#[case] change: Value, #[case] code: &str) {
    let pilot = Pilot::start().await;
    let token = pilot.key.sign(&pilot.claims(change));
    let answer = pilot.post(&token, &list_tools()).await;
    refused(&answer, 403, code);
    if code.starts_with("missing_scope") {
        assert!(answer.header("www-authenticate").contains("error=\"insufficient_scope\", scope=\"mail:read\""));
    }
}

#[rstest]
#[case(json!({"client_id": null, "azp": CLIENT}))]
#[case(json!({"azp": CLIENT}))]
#[case(json!({"aud": ["https://other.example.com", RESOURCE]}))]
#[case(json!({"scope": null, "scp": ["mail:read"]}))]
#[tokio::test]
async fn tokens_of_different_issuers_are_understood(#[case] change: Value) {
    let pilot = Pilot::start().await;
    let token = pilot.key.sign(&pilot.claims(change));
    assert_eq!(pilot.post(&token, &list_tools()).await.status, 200);
}

#[tokio::test]
async fn a_revoked_or_ended_approval_ends_at_once() {
    let pilot = Pilot::start().await;
    assert_eq!(pilot.post(&pilot.token(), &list_tools()).await.status, 200);
    sqlx::query("update assistant_approvals set revoked_at = now()").execute(&pilot.edge.pool).await.unwrap();
    refused(&pilot.post(&pilot.token(), &list_tools()).await, 403, "not_approved");
    let second = approve(&pilot.edge, &pilot.issuer.url, USER, CLIENT, pilot.tenant, false).await;
    assert_eq!(pilot.post(&pilot.token(), &list_tools()).await.status, 200);
    sqlx::query("update assistant_approvals set expires_at = now() where id = $1")
        .bind(second)
        .execute(&pilot.edge.pool)
        .await
        .unwrap();
    refused(&pilot.post(&pilot.token(), &list_tools()).await, 403, "not_approved");
}

#[tokio::test]
async fn an_approval_is_of_one_issuer() {
    let pilot = Pilot::start().await;
    sqlx::query("update assistant_approvals set issuer = 'https://id.example.com'")
        .execute(&pilot.edge.pool)
        .await
        .unwrap();
    refused(&pilot.post(&pilot.token(), &list_tools()).await, 403, "not_approved");
}

#[tokio::test]
async fn the_rate_holds_over_several_processes() {
    let pilot = Pilot::with(10, false).await;
    let other = ingress::router(pilot.edge.another().await);
    let token = pilot.token();
    let mut answers = Vec::new();
    for number in 0..14 {
        let asked = request(Some(&token), list_tools().to_string());
        answers.push(if number % 2 == 0 { pilot.send(asked).await } else { send(&other, asked).await });
    }
    assert_eq!(
        answers.iter().map(|answer| answer.status == 200).collect::<Vec<_>>(),
        [[true; 10].as_slice(), &[false; 4]].concat()
    );
    assert_eq!(answers[10].refusal(), (429, "rate_limit_exceeded"));
    assert!((1..=60).contains(&answers[10].header("retry-after").parse::<u32>().unwrap()));
}

#[tokio::test]
async fn the_rate_holds_over_any_sixty_seconds() {
    let pilot = Pilot::with(3, false).await;
    let token = pilot.token();
    // As if so much time had passed: what was counted was counted earlier, by two seconds.
    let pass = async |seconds: i64| {
        let moved = "update rate_counts set bucket = bucket - $1";
        sqlx::query(moved).bind(seconds / 2).execute(&pilot.edge.pool).await.unwrap();
    };
    let ask = async || pilot.post(&token, &list_tools()).await.status.as_u16();
    assert_eq!([ask().await, ask().await, ask().await, ask().await], [200, 200, 200, 429]);
    pass(40).await;
    assert_eq!(ask().await, 429);
    pass(24).await;
    assert_eq!([ask().await, ask().await, ask().await, ask().await], [200, 200, 200, 429]);
}

#[rstest]
#[case::nothing("", "invalid_json")]
#[case::not_json("{", "invalid_json")]
#[case::too_deep(&"[".repeat(100_000), "invalid_json")]
#[case::no_object("[]", "invalid_message")]
#[case::no_method(r#"{"jsonrpc":"2.0","id":1}"#, "invalid_message")]
#[case::no_version(r#"{"id":1,"method":"tools/list"}"#, "invalid_message")]
#[tokio::test]
async fn a_body_that_is_no_message_is_refused_in_our_shape(#[case] body: &str, #[case] code: &str) {
    let pilot = Pilot::start().await;
    let answer = pilot.send(request(Some(&pilot.token()), body.to_owned())).await;
    assert_eq!(answer.refusal(), (400, code), "{}", answer.body);
}

#[tokio::test]
async fn what_is_not_the_protocol_is_refused() {
    let pilot = Pilot::start().await;
    let body = list_tools().to_string();
    let mut elsewhere = request(Some(&pilot.token()), body.clone());
    elsewhere.headers_mut().insert("origin", "https://evil.example".parse().unwrap());
    assert_eq!(pilot.send(elsewhere).await.refusal(), (403, "origin_not_allowed"));
    let mut own = request(Some(&pilot.token()), body.clone());
    own.headers_mut().insert("origin", "https://mail.example.com".parse().unwrap());
    assert_eq!(pilot.send(own).await.status, 200);
    let mut picky = request(Some(&pilot.token()), body.clone());
    picky.headers_mut().insert("accept", "text/html".parse().unwrap());
    assert_eq!(pilot.send(picky).await.refusal(), (406, "not_acceptable"));
    let mut form = request(Some(&pilot.token()), body);
    form.headers_mut().insert("content-type", "text/plain".parse().unwrap());
    assert_eq!(pilot.send(form).await.refusal(), (415, "unsupported_media_type"));
    let long = json!({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "x".repeat(300_000)}}).to_string();
    assert_eq!(pilot.send(request(Some(&pilot.token()), long)).await.refusal(), (413, "body_too_large"));
    for method in [Method::GET, Method::DELETE] {
        let mut other = request(Some(&pilot.token()), String::new());
        *other.method_mut() = method;
        assert_eq!(pilot.send(other).await.refusal(), (405, "method_not_allowed"));
    }
}
