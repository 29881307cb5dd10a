//! Middleware of every request: request id, access log, metrics, the error shape of unknown paths and panics.

use std::{sync::Arc, time::Instant};

use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderName, HeaderValue, Method, StatusCode, Uri};
use runtime::{
    Counter, Gauge, Histogram,
    trace::{self, Span, SpanKind, TraceContext},
};
use uuid::Uuid;

use super::{
    Operation, auth,
    error::ApiError,
    observed::RequestTrace,
    perform::REPLAYED,
    request_log::{LoggedCall, RefusalReason},
    validate::is_ascii_name,
};
use crate::state::Ingress;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REQUEST_ID_MAX_CHARS: usize = 100;

/// Finds the operation of a method of a route.
pub type FindOperation = fn(&str, &str) -> Option<&'static Operation>;

/// Gives every answer its request id, and counts, times and logs it.
pub async fn observe(
    State((ingress, operation_at)): State<(Arc<Ingress>, FindOperation)>,
    mut request: Request,
    next: Next,
) -> Response {
    let begun = Instant::now();
    let _in_flight = Gauge::HttpRequestsInFlight.count_in_flight();
    let trusted = request.extensions().get::<auth::TrustedCaller>();
    let via = if trusted.is_some() { "bus" } else { "http" };
    let is_dry_run = trusted.is_some_and(|trusted| trusted.dry_run);
    let id = request_id(request.headers().get(&REQUEST_ID));
    let method = method_label(request.method());
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    // A call over the bus is in its message's trace already.
    let parent = TraceContext::of_request(request.headers()).or_else(TraceContext::current);
    let span = Span::enter(SpanKind::Server, || format!("{method} {route}").into(), parent.as_ref());
    request.headers_mut().insert(REQUEST_ID, id.clone());
    let mut response = trace::within(span.as_ref().map(Span::ambient), next.run(request)).await;
    let seconds = begun.elapsed().as_secs_f64();
    let status = response.status();
    response.headers_mut().insert(REQUEST_ID, id.clone());
    let limit = ingress.settings.rate_limit_per_minute;
    if limit > 0
        && let Ok(policy) = HeaderValue::try_from(format!("\"key\";q={limit};w={}", auth::admission::WINDOW_SECONDS))
    {
        response.headers_mut().insert("ratelimit-policy", policy);
    }
    let seen = response.extensions_mut().remove::<RequestTrace>().unwrap_or_default();
    let (key_id, tenant_id) = (seen.caller.as_ref().map(|caller| caller.key_id), seen.tenant.id());
    if let Some(span) = &span {
        describe(span, method, &route, status, &id, [("mail.key_id", key_id), ("mail.tenant_id", tenant_id)]);
    }
    trace::scope(span.as_ref().map(Span::ambient), || {
        tracing::info!(
            request_id = id.to_str().unwrap_or_default(),
            route,
            method,
            status = status.as_u16(),
            via,
            duration_ms = (seconds * 1_000.0).round(),
            key_id = key_id.map(tracing::field::display),
            tenant_id = tenant_id.map(tracing::field::display),
            "request"
        )
    });
    if !is_dry_run
        && let Some(operation) = operation_at(method, &route)
        && let Some(call) = logged_call(seen, operation, &response)
    {
        let request_id = id.to_str().ok().map(str::to_owned);
        ingress.request_log.note(LoggedCall { via, request_id, duration: begun.elapsed(), ..call });
    }
    let (via, method, status) = (via.to_owned(), method.to_owned(), status.as_u16().to_string());
    Histogram::HttpRequestSeconds
        .record_owned(seconds, [("via", via.clone()), ("route", route.clone()), ("method", method.clone())]);
    Counter::HttpRequestsTotal.add_owned(1, [("via", via), ("route", route), ("method", method), ("status", status)]);
    response
}

/// The entry of an answer in the request log, if it has one.
fn logged_call(seen: RequestTrace, operation: &'static Operation, response: &Response) -> Option<LoggedCall> {
    let caller = seen.caller?;
    let tenant = seen.tenant.logged(&caller)?;
    let call = LoggedCall::new(caller, tenant, operation, response.status())?;
    let refusal = response.extensions().get::<RefusalReason>().cloned();
    Some(LoggedCall { refusal, replayed: response.headers().contains_key(REPLAYED), ..call })
}

/// Sets the fields of the access log on the request's span, with the standard names.
fn describe(
    span: &Span,
    method: &'static str,
    route: &str,
    status: StatusCode,
    id: &HeaderValue,
    ids: [(&'static str, Option<Uuid>); 2],
) {
    span.set("http.request.method", method);
    span.set("http.route", route.to_owned());
    span.set("http.response.status_code", i64::from(status.as_u16()));
    span.set("mail.http_request_id", id.to_str().unwrap_or_default().to_owned());
    for (key, known) in ids {
        if let Some(known) = known {
            span.set_id(key, known);
        }
    }
    if status.is_server_error() {
        span.fail("server_error");
    }
}

/// The caller's request id if it is valid, or a new one.
fn request_id(given: Option<&HeaderValue>) -> HeaderValue {
    let sane = |text: &str| is_ascii_name(text, REQUEST_ID_MAX_CHARS, b"-_.:");
    given
        .filter(|value| value.to_str().is_ok_and(sane))
        .cloned()
        .or_else(|| HeaderValue::try_from(schemas::new_id().to_string()).ok())
        .unwrap_or(HeaderValue::from_static("-"))
}

/// A bounded label: callers can make up methods.
fn method_label(method: &Method) -> &'static str {
    static KNOWN: [Method; 7] =
        [Method::GET, Method::POST, Method::PATCH, Method::DELETE, Method::PUT, Method::HEAD, Method::OPTIONS];
    KNOWN.iter().find(|known| *known == method).map_or("other", Method::as_str)
}

/// 404 for an unknown path.
pub async fn no_such_path() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "not_found")
}

/// 405 for a method that a path does not have; axum adds `Allow`. 404 for the assistant endpoint while it is off.
pub async fn no_such_method(State(ingress): State<Arc<Ingress>>, uri: Uri) -> ApiError {
    if ingress.assistant.is_none() && uri.path() == mcp::PATH {
        return no_such_path().await;
    }
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed")
}

/// For a handler that panicked. The payload may quote data, so it is not logged; the panic hook (`runtime::telemetry::init_logs`) has
/// said where.
pub fn panicked(_: Box<dyn std::any::Any + Send + 'static>) -> Response {
    tracing::error!("a handler panicked");
    ApiError::internal().into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("req-1:a_b.c", true)]
    #[case("", false)]
    #[case("a b", false)]
    #[case("<script>", false)]
    fn a_sane_request_id_is_kept(#[case] given: &str, #[case] kept: bool) {
        let value = HeaderValue::try_from(given).unwrap();
        assert_eq!(request_id(Some(&value)) == value, kept);
        let long = HeaderValue::try_from("a".repeat(101)).unwrap();
        assert_ne!(request_id(Some(&long)), long);
    }

    #[tokio::test]
    async fn a_panic_is_a_500_in_the_error_shape() {
        use tower::ServiceExt;
        async fn broken() -> &'static str {
            panic!("ann@example.com")
        }
        let router: axum::Router = axum::Router::new()
            .route("/", axum::routing::get(broken))
            .layer(tower_http::catch_panic::CatchPanicLayer::custom(panicked));
        let response = router.oneshot(Request::new(axum::body::Body::empty())).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let body = axum::body::to_bytes(response.into_body(), 1_000).await.unwrap();
        assert_eq!(body.as_ref(), br#"{"ok":false,"error":"internal_error"}"#);
    }
}
