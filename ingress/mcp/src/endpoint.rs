//! `POST /mcp` and its OAuth protected resource metadata.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::never::NeverSessionManager,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    Assistant,
    protocol::Workspace,
    refusal::{self, AssistantRefusal},
    token::{SCOPE_DRAFTS, SCOPE_READ},
};

/// The longest request, in bytes: a draft proposal with all its texts.
const BODY_MAX_BYTES: usize = 256 * 1024;
const BODY_TIMEOUT: Duration = Duration::from_secs(20);

/// OAuth protected resource metadata (RFC 9728 §2).
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProtectedResource {
    #[schemars(url)]
    resource: String,
    #[schemars(inner(url))]
    authorization_servers: Vec<String>,
    scopes_supported: Vec<&'static str>,
    bearer_methods_supported: Vec<&'static str>,
    resource_name: &'static str,
}

/// Answers with [`ProtectedResource`].
#[must_use]
pub fn metadata(assistant: &Assistant) -> Response {
    let metadata = ProtectedResource {
        resource: assistant.terms.resource.clone(),
        authorization_servers: vec![assistant.terms.issuer.clone()],
        scopes_supported: vec![SCOPE_READ, SCOPE_DRAFTS],
        bearer_methods_supported: vec!["header"],
        resource_name: "Postrider",
    };
    Json(metadata).into_response()
}

/// One message of the protocol: token, approval, rate, then the protocol itself. No session is kept between two of them.
pub async fn answer(assistant: &Arc<Assistant>, request: Request) -> Response {
    let mut response = match admitted(assistant, request).await {
        Ok(response) => response,
        Err(refusal) => refusal.answer(&assistant.terms),
    };
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn admitted(assistant: &Arc<Assistant>, request: Request) -> Result<Response, AssistantRefusal> {
    let (parts, body) = request.into_parts();
    check_origin(&parts.headers, assistant)?;
    let bearer = assistant.identify(&parts.headers).await?;
    let approval = assistant.admit(&bearer).await?;
    let body = read_body(body).await?;
    check_json(&parts.headers, &body)?;
    let workspace = Workspace { assistant: Arc::clone(assistant), approval };
    let service = StreamableHttpService::new(
        move || Ok(workspace.clone()),
        Arc::new(NeverSessionManager::default()),
        StreamableHttpServerConfig::default()
            .with_legacy_session_mode(false)
            .with_json_response(true)
            .with_max_request_body_bytes(BODY_MAX_BYTES)
            // The check is against web pages that borrow a browser's rights by DNS; here a token is all there is to borrow.
            .disable_allowed_hosts(),
    );
    let answer = service.handle(http::Request::from_parts(parts, Full::new(body))).await;
    Ok(in_our_shape(answer.map(Body::new)))
}

/// A web page may call only when it is of the endpoint's own origin (MCP, Streamable HTTP, "Security warning").
fn check_origin(headers: &HeaderMap, assistant: &Assistant) -> Result<(), AssistantRefusal> {
    let own = assistant.terms.resource_url.origin().ascii_serialization();
    match headers.get(header::ORIGIN) {
        Some(origin) if origin.as_bytes() != own.as_bytes() => Err(AssistantRefusal::Origin),
        _ => Ok(()),
    }
}

async fn read_body(body: Body) -> Result<Bytes, AssistantRefusal> {
    match tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, BODY_MAX_BYTES).collect()).await {
        Err(_) => Err(AssistantRefusal::SlowBody),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(AssistantRefusal::BodyTooLarge),
        Ok(Err(_)) => Err(AssistantRefusal::IncompleteBody),
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
    }
}

/// The protocol's library reports every unreadable body as a wrong media type; this check distinguishes them.
fn check_json(headers: &HeaderMap, body: &[u8]) -> Result<(), AssistantRefusal> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        return Err(AssistantRefusal::MediaType);
    }
    serde_json::from_slice::<serde::de::IgnoredAny>(body).map(drop).map_err(|_| AssistantRefusal::Json)
}

/// What the protocol refuses before it comes to messages is plain text there; here every refusal has the same shape.
fn in_our_shape(response: Response) -> Response {
    let is_json = response.headers().get(header::CONTENT_TYPE).is_some_and(|value| value == "application/json");
    if response.status().is_success() || is_json {
        return response;
    }
    let code = match response.status() {
        StatusCode::NOT_ACCEPTABLE => "not_acceptable",
        StatusCode::PAYLOAD_TOO_LARGE => "body_too_large",
        StatusCode::FORBIDDEN => "origin_not_allowed",
        StatusCode::METHOD_NOT_ALLOWED => "method_not_allowed",
        status if status.is_client_error() => return refusal::shaped(StatusCode::BAD_REQUEST, "invalid_message"),
        _ => return refusal::shaped(StatusCode::INTERNAL_SERVER_ERROR, "internal_error"),
    };
    refusal::shaped(response.status(), code)
}
