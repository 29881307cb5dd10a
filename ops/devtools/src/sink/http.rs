//! The inbox over HTTP. The routes stand in [`super`]'s documentation.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::sink::inbox::{Count, Inbox, Stats};
use crate::sink::message::StoredMessage;
use crate::sink::page;
use crate::sink::rules::SinkRule;

/// A million addresses fit.
const MAX_BODY: usize = 128 * 1024 * 1024;
/// Longest wait of `GET /wait`.
const MAX_WAIT: Duration = Duration::from_secs(3_600);

/// Answers until it is dropped.
pub(crate) async fn serve(listener: TcpListener, inbox: Arc<Inbox>) {
    if let Err(error) = axum::serve(listener, router(inbox)).await {
        tracing::error!(%error, "the inbox page ended");
    }
}

pub(crate) fn router(inbox: Arc<Inbox>) -> Router {
    Router::new()
        .route("/", get(list_page))
        .route("/inbox/{id}", get(message_page))
        .route("/stats", get(stats))
        .route("/count", get(count))
        .route("/counts", axum::routing::post(counts))
        .route("/messages", get(messages).delete(clear))
        .route("/messages/{id}", get(message))
        .route("/messages/{id}/source", get(source))
        .route("/messages/{id}/html", get(html))
        .route("/rules", get(show_rules).put(set_rules))
        .route("/wait", get(wait))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(inbox)
}

type Inboxed = State<Arc<Inbox>>;

/// Nothing of a mail may run, and nothing but our own style may load on our own pages.
const PAGE_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; frame-src 'self'; base-uri 'none'; frame-ancestors 'none'";

/// A mail may load pictures (that is how opens are seen) and open links in new tabs. It may not run scripts.
const MAIL_POLICY: &str = "sandbox allow-popups allow-popups-to-escape-sandbox; default-src 'none'; img-src http: https: data:; style-src 'unsafe-inline'; font-src data:";

fn guarded(policy: &'static str, html: String) -> Response {
    let headers = [(header::CONTENT_SECURITY_POLICY, policy), (header::CACHE_CONTROL, "no-store")];
    (headers, Html(html)).into_response()
}

async fn list_page(State(inbox): Inboxed, Query(query): Query<MessagesQuery>) -> Response {
    let to = query.to.as_deref().filter(|to| !to.is_empty());
    let messages = inbox.messages(query.limit.unwrap_or(100), to);
    guarded(PAGE_POLICY, page::list(&inbox.stats(), &messages, to))
}

async fn message_page(State(inbox): Inboxed, Path(id): Path<u64>) -> Result<Response, NotKept> {
    let message = inbox.message(id).ok_or(NotKept)?;
    Ok(guarded(PAGE_POLICY, page::message(&message, &message.parse())))
}

async fn stats(State(inbox): Inboxed) -> Json<Stats> {
    Json(inbox.stats())
}

#[derive(Deserialize)]
struct CountQuery {
    address: String,
}

async fn count(State(inbox): Inboxed, Query(query): Query<CountQuery>) -> Json<Count> {
    Json(inbox.count(&query.address))
}

#[derive(Deserialize)]
struct CountsQuery {
    not: Option<u32>,
}

/// Of a million addresses, so not as a [`Value`].
#[derive(Serialize)]
struct Counts {
    checked: usize,
    matching: usize,
    counts: Vec<Count>,
}

async fn counts(
    State(inbox): Inboxed,
    Query(query): Query<CountsQuery>,
    Json(addresses): Json<Vec<String>>,
) -> Json<Counts> {
    let counts = addresses.iter().map(|address| inbox.count(address));
    let counts: Vec<Count> = counts.filter(|count| query.not.is_none_or(|not| count.count != not)).collect();
    Json(Counts { checked: addresses.len(), matching: counts.len(), counts })
}

#[derive(Deserialize)]
struct MessagesQuery {
    limit: Option<usize>,
    to: Option<String>,
}

/// A mail: its envelope, and of its content what was asked for.
#[derive(Serialize)]
struct Mail<'a> {
    #[serde(flatten)]
    envelope: &'a StoredMessage,
    bytes: usize,
    #[serde(flatten)]
    content: Value,
}

impl<'a> Mail<'a> {
    fn of(envelope: &'a StoredMessage, content: Value) -> Self {
        Self { envelope, bytes: envelope.source.len(), content }
    }
}

async fn messages(State(inbox): Inboxed, Query(query): Query<MessagesQuery>) -> Json<Value> {
    let found = inbox.messages(query.limit.unwrap_or(50), query.to.as_deref());
    let listed = found.iter().map(|message| Mail::of(message, json!({"subject": message.parse().subject})));
    Json(json!({"messages": listed.collect::<Vec<_>>()}))
}

async fn message(State(inbox): Inboxed, Path(id): Path<u64>) -> Result<Json<Value>, NotKept> {
    let message = inbox.message(id).ok_or(NotKept)?;
    Ok(Json(json!(Mail::of(&message, json!(message.parse())))))
}

async fn source(State(inbox): Inboxed, Path(id): Path<u64>) -> Result<Response, NotKept> {
    let message = inbox.message(id).ok_or(NotKept)?;
    let headers = [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    Ok((headers, message.source.clone()).into_response())
}

async fn html(State(inbox): Inboxed, Path(id): Path<u64>) -> Result<Response, NotKept> {
    let message = inbox.message(id).ok_or(NotKept)?;
    let html = message.parse().html.ok_or(NotKept)?;
    Ok(guarded(MAIL_POLICY, page::with_links_in_new_tabs(&html)))
}

async fn clear(State(inbox): Inboxed) -> StatusCode {
    inbox.clear();
    StatusCode::NO_CONTENT
}

async fn show_rules(State(inbox): Inboxed) -> Json<Vec<SinkRule>> {
    Json(inbox.rules().to_vec())
}

async fn set_rules(State(inbox): Inboxed, text: String) -> Response {
    match SinkRule::parse_list(&text) {
        Ok(rules) => {
            inbox.set_rules(rules);
            StatusCode::NO_CONTENT.into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error:#}")).into_response(),
    }
}

#[derive(Deserialize)]
struct WaitQuery {
    accepted: Option<u64>,
    address: Option<String>,
    count: Option<u32>,
    timeout_ms: Option<u64>,
}

async fn wait(State(inbox): Inboxed, Query(query): Query<WaitQuery>) -> Response {
    let timeout = Duration::from_millis(query.timeout_ms.unwrap_or(10_000)).min(MAX_WAIT);
    let reached = match (query.accepted, query.address) {
        (Some(accepted), None) => inbox.wait_for_accepted(accepted, timeout).await,
        (None, Some(address)) => inbox.wait_for_address(&address, query.count.unwrap_or(1), timeout).await,
        _ => return (StatusCode::BAD_REQUEST, "wait takes either accepted or address (and count)").into_response(),
    };
    Json(json!({"reached": reached, "accepted": inbox.stats().accepted})).into_response()
}

/// The mail was never there, or newer ones took its place.
struct NotKept;

impl IntoResponse for NotKept {
    fn into_response(self) -> Response {
        (StatusCode::NOT_FOUND, "no such mail, or no longer: only the newest are kept whole").into_response()
    }
}
