//! A stand-in for an OTLP collector: a real listener that reads what is posted to it and keeps the steps. It also takes webhooks, to
//! show what trace they are said to be of.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{Router, extract::State, routing::post};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, KeyValue, any_value::Value},
    trace::v1::{Span, span::SpanKind},
};
use prost::Message;

/// A step as the collector was told of it.
#[derive(Debug, Clone)]
pub struct Step {
    /// Its trace, in hex.
    pub trace: String,
    /// Its own id, in hex.
    pub id: String,
    /// The step above; empty for the first of a trace.
    pub parent: String,
    pub name: String,
    /// `Server`, `Client`, `Producer`, `Consumer`, `Internal`.
    pub kind: String,
    pub state: String,
    /// When it began and ended, in nanoseconds since 1970.
    pub times: (u64, u64),
    pub links: Vec<String>,
    /// What is said of it.
    pub attributes: BTreeMap<String, String>,
    /// What is said of the process.
    pub resource: BTreeMap<String, String>,
    pub failed: bool,
}

#[derive(Default)]
struct Seen {
    steps: Mutex<Vec<Step>>,
    called: Mutex<Vec<HeaderMap>>,
    refuses: AtomicBool,
}

/// The collector; stops listening when dropped.
pub struct Collector {
    address: SocketAddr,
    seen: Arc<Seen>,
    task: tokio::task::JoinHandle<()>,
}

impl Collector {
    pub async fn start() -> Self {
        let seen = Arc::new(Seen::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new()
            .route("/v1/traces", post(take))
            .route("/hooks", post(be_called))
            .with_state(Arc::clone(&seen));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, seen, task }
    }

    /// What `otlp-endpoint` takes.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Answers 503 from now on, or no more.
    pub fn refuse(&self, refuses: bool) {
        self.seen.refuses.store(refuses, Ordering::Relaxed);
    }

    pub fn steps(&self) -> Vec<Step> {
        self.seen.steps.lock().unwrap().clone()
    }

    /// Those of one trace, in the order they began.
    pub fn trace(&self, id: &str) -> Vec<Step> {
        let mut steps = self.steps();
        steps.retain(|step| step.trace == id);
        steps.sort_by_key(|step| step.times.0);
        steps
    }

    /// An address that takes webhooks.
    pub fn hooks(&self) -> String {
        format!("{}/hooks", self.endpoint())
    }

    /// The headers of every webhook so far.
    pub fn called(&self) -> Vec<HeaderMap> {
        self.seen.called.lock().unwrap().clone()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn take(State(seen): State<Arc<Seen>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    if seen.refuses.load(Ordering::Relaxed) {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    assert_eq!(headers[header::CONTENT_TYPE], "application/x-protobuf");
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    for of_resource in request.resource_spans {
        let resource = said(&of_resource.resource.unwrap_or_default().attributes);
        let spans = of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
        seen.steps.lock().unwrap().extend(spans.map(|span| step(span, &resource)));
    }
    StatusCode::OK
}

async fn be_called(State(seen): State<Arc<Seen>>, headers: HeaderMap) -> StatusCode {
    seen.called.lock().unwrap().push(headers);
    StatusCode::NO_CONTENT
}

fn step(span: Span, resource: &BTreeMap<String, String>) -> Step {
    Step {
        trace: hex::encode(&span.trace_id),
        id: hex::encode(&span.span_id),
        parent: hex::encode(&span.parent_span_id),
        kind: format!("{:?}", SpanKind::try_from(span.kind).unwrap()),
        name: span.name,
        state: span.trace_state,
        times: (span.start_time_unix_nano, span.end_time_unix_nano),
        links: span.links.iter().map(|link| hex::encode(&link.trace_id)).collect(),
        attributes: said(&span.attributes),
        resource: resource.clone(),
        failed: span.status.is_some_and(|status| status.code == 2),
    }
}

fn said(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let pair = |pair: &KeyValue| (pair.key.clone(), text(pair.value.as_ref()));
    attributes.iter().map(pair).collect()
}

fn text(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(flag)) => flag.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}
