//! `GET /openapi.json` and `GET /docs`.

use axum::body::Body;
use http::Request;

use crate::common::{Edge, send};

async fn get(edge: &Edge, path: &str, tag: Option<&str>) -> crate::common::Answer {
    let mut request = Request::builder().uri(path);
    if let Some(tag) = tag {
        request = request.header("if-none-match", tag);
    }
    send(&ingress::router(std::sync::Arc::clone(&edge.ingress)), request.body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn the_document_and_its_page_are_served_to_anybody_and_only_when_they_are_new() {
    let edge = Edge::start().await;
    let document = get(&edge, "/openapi.json", None).await;
    assert_eq!((document.status.as_u16(), document.header("content-type")), (200, "application/json"));
    assert_eq!(document.bytes, ingress::contracts().openapi.as_bytes());
    for path in ["/openapi.json", "/asyncapi.json", "/docs", "/docs/scalar.js"] {
        let first = get(&edge, path, None).await;
        let tag = first.header("etag").to_owned();
        assert!(tag.len() > 10, "{path}");
        let again = get(&edge, path, Some(&tag)).await;
        assert_eq!((again.status.as_u16(), again.bytes.len()), (304, 0), "{path}");
        assert_eq!(get(&edge, path, Some("\"other\"")).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn the_page_loads_the_viewer_from_here_and_nothing_from_elsewhere() {
    let edge = Edge::start().await;
    let page = get(&edge, "/docs", None).await;
    assert!(page.header("content-type").starts_with("text/html"));
    let policy = page.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'self' 'sha256-"), "{policy}");
    assert!(policy.contains("connect-src 'self';") && !policy.contains("http") && !policy.contains("eval"), "{policy}");
    let html = String::from_utf8(page.bytes).unwrap();
    assert!(!html.contains("://") && html.contains(r#"<script src="/docs/scalar.js">"#), "{html}");
    let script = get(&edge, "/docs/scalar.js", None).await;
    assert!(script.header("content-type").starts_with("text/javascript"));
    assert!(script.bytes.len() > 1024 * 1024, "the viewer is not part of the program");
}
