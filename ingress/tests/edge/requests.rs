//! What a body and a query must look like.

use http::Method;
use rstest::rstest;
use serde_json::json;

use crate::common::Edge;

#[rstest]
#[case::duplicate_key(
    r#"{"product_tenant_id":"tenant-1","email":"a@example.com","email":"b@example.com"}"#,
    400,
    "invalid_json"
)]
#[case::nested_duplicate(
    r#"{"product_tenant_id":"tenant-1","email":"a@example.com","fields":{"x":1,"x":2}}"#,
    400,
    "invalid_json"
)]
#[case::nul(r#"{"product_tenant_id":"tenant-1","email":"a@example.com","first_name":"x\u0000"}"#, 400, "invalid_json")]
#[case::trailing(r#"{"product_tenant_id":"tenant-1","email":"a@example.com"} {}"#, 400, "invalid_json")]
#[case::array("[]", 400, "invalid_json")]
#[case::text("\"x\"", 400, "invalid_json")]
#[case::empty("", 400, "invalid_json")]
#[case::unknown_field(
    r#"{"product_tenant_id":"tenant-1","email":"a@example.com","colour":"red"}"#,
    400,
    "validation_failed"
)]
#[case::no_tenant(r#"{"email":"a@example.com"}"#, 400, "validation_failed")]
#[case::tenant_is_no_text(r#"{"product_tenant_id":7,"email":"a@example.com"}"#, 400, "validation_failed")]
#[case::good(r#"{"product_tenant_id":"tenant-1","email":"a@example.com"}"#, 201, "")]
#[tokio::test]
async fn a_body_is_one_plain_object_of_known_fields(#[case] body: &str, #[case] status: u16, #[case] code: &str) {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let answer = client.send(client.signed(Method::POST, "/v1/contacts", body.as_bytes())).await;
    assert_eq!(answer.refusal(), (status, code), "{}", answer.body);
    assert_eq!(edge.count("select count(*) from contacts").await, i64::from(status == 201));
}

#[tokio::test]
async fn an_unknown_field_is_named() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let answer = client.post("/v1/contacts", json!({"email": "a@example.com", "colour": "red"})).await;
    assert_eq!(answer.faults(), [("colour".to_owned(), "unknown_field".to_owned())]);
    let answer = client.post("/v1/contacts", json!({"email": "a@example.com", "consent": {"colour": "red"}})).await;
    assert_eq!(answer.faults(), [("consent.colour".to_owned(), "unknown_field".to_owned())]);
}

#[tokio::test]
async fn another_content_type_is_refused() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let body = br#"{"product_tenant_id":"tenant-1","email":"a@example.com"}"#;
    for content_type in ["text/plain", "application/json; charset=latin1"] {
        let mut request = client.signed(Method::POST, "/v1/contacts", body);
        request.headers_mut().insert("content-type", content_type.parse().unwrap());
        assert_eq!(client.send(request).await.refusal(), (415, "unsupported_media_type"));
    }
}

#[tokio::test]
async fn a_body_over_a_megabyte_is_refused_except_for_imports() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let filler = "x".repeat(1024 * 1024);
    let answer = client.post("/v1/contacts", json!({"email": "a@example.com", "first_name": filler})).await;
    assert_eq!(answer.refusal(), (413, "body_too_large"));
    let csv = format!("email\n{}", "ann@example.com\n".repeat(70_000));
    assert!(csv.len() > 1024 * 1024);
    assert_eq!(client.post("/v1/imports", json!({"csv": csv})).await.refusal(), (413, "too_many_rows"));
}

#[rstest]
#[case("limit=0", "limit")]
#[case("limit=201", "limit")]
#[case("limit=x", "limit")]
#[case("cursor=x", "cursor")]
#[case("colour=red", "colour")]
#[case("status=erased", "status")]
#[case("email=nobody", "email")]
#[case("updated_since=monday", "updated_since")]
#[case("list_id=URN:1", "list_id")]
#[case("limit=1&limit=2", "limit")]
#[tokio::test]
async fn a_bad_query_parameter_is_refused_by_name(#[case] query: &str, #[case] name: &str) {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let answer = client.get(&format!("/v1/contacts?{query}")).await;
    assert_eq!(answer.refusal(), (400, "validation_failed"), "{}", answer.body);
    assert_eq!(answer.faults()[0].0, name, "{}", answer.body);
}

#[tokio::test]
async fn a_sane_request_id_comes_back() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let mut request = client.signed(Method::GET, "/v1/contacts?product_tenant_id=tenant-1", b"");
    request.headers_mut().insert("x-request-id", "mine-1".parse().unwrap());
    assert_eq!(client.send(request).await.header("x-request-id"), "mine-1");
}

#[tokio::test]
async fn a_real_listener_answers_and_stops() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let edge = Edge::start().await;
    let shutdown = tokio_util::sync::CancellationToken::new();
    let serving = ingress::serve(std::sync::Arc::clone(&edge.ingress), shutdown.clone()).await.unwrap();
    let mut stream = tokio::net::TcpStream::connect(serving.address).await.unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("\"database\":true"), "{answer}");
    // An idle connection does not hold the shutdown up.
    let idle = tokio::net::TcpStream::connect(serving.address).await.unwrap();
    shutdown.cancel();
    serving.finished().await;
    drop(idle);
}
