//! Traces to an OTLP collector, by http with protobuf.
//!
//! Spans that have ended go into a queue, without a wait. When it is full, because the collector is slow or unavailable, they are
//! dropped and counted (`mail_trace_spans_total`). One task takes them out and posts them in groups. Only this crate uses the SDK of
//! OpenTelemetry; all others use [`runtime::trace`].
//!
//! It also reads the standard's environment variables `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_HEADERS`,
//! `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME`.

mod client;
mod queue;

use std::time::Duration;

use opentelemetry::{
    KeyValue,
    global::{self, BoxedTracer},
};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    resource::EnvResourceDetector,
    trace::{Sampler, SdkTracerProvider},
};
use runtime::{
    outbound::SetupError,
    trace::{self, TraceSettings},
};
use thiserror::Error;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::{client::Client, queue::Queue};

/// The service's name, unless `OTEL_SERVICE_NAME` has another.
const SERVICE: &str = "postrider";
/// Longest the collector may take over one post.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Traces cannot be exported. Shown at start.
#[derive(Debug, Error)]
pub enum OtlpError {
    /// The file with more authorities, or TLS itself.
    #[error("otlp-ca-file: {0}")]
    Tls(#[from] SetupError),
    /// The client cannot be made.
    #[error("the client for the collector cannot be set up")]
    Client(#[from] reqwest::Error),
    /// The exporter cannot be made.
    #[error("otlp-endpoint: {0}")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
}

/// Traces on their way to the collector, as long as the process runs.
#[derive(Debug)]
#[must_use = "what is not flushed is lost"]
pub struct Exporting {
    provider: SdkTracerProvider,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// Has traces recorded and exported, if an endpoint is set. `processes` says what runs here: `all`, `ingress`, `audience+delivery`.
/// Call inside a runtime.
pub fn start(settings: &TraceSettings, processes: &str) -> Result<Option<Exporting>, OtlpError> {
    let Some(url) = settings.traces_url() else { return Ok(None) };
    let client = Client::new(settings.otlp_ca_file.as_deref(), EXPORT_TIMEOUT)?;
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(url.as_str())
        .with_timeout(EXPORT_TIMEOUT)
        .build()?;
    let resource = resource(processes);
    opentelemetry_sdk::trace::SpanExporter::set_resource(&mut exporter, &resource);
    let stop = CancellationToken::new();
    let (queue, waiting) = Queue::new();
    let task = tokio::spawn(queue::carry(waiting, exporter, stop.clone()));
    // What is recorded was decided where the trace entered (`runtime::trace::Span::enter`).
    let provider = SdkTracerProvider::builder()
        .with_sampler(Sampler::AlwaysOn)
        .with_resource(resource)
        .with_span_processor(queue)
        .build();
    global::set_tracer_provider(provider.clone());
    let tracer: BoxedTracer = global::tracer(SERVICE);
    trace::install(tracer, settings.trace_ratio);
    // The address may hold a key.
    tracing::info!(ratio = settings.trace_ratio, "traces are exported");
    Ok(Some(Exporting { provider, stop, task }))
}

impl Exporting {
    /// Posts what is left, at most for so long. For the end of the process.
    pub async fn flush(self, within: Duration) {
        self.stop.cancel();
        if tokio::time::timeout(within, self.task).await.is_err() {
            tracing::warn!("the collector did not take the last traces in time");
        }
        drop(self.provider);
    }
}

/// What all steps of this process have in common. The environment has the last word.
fn resource(processes: &str) -> Resource {
    let service = std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.trim().is_empty());
    Resource::builder_empty()
        .with_attributes([
            KeyValue::new("service.name", service.unwrap_or_else(|| SERVICE.to_owned())),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", uuid::Uuid::new_v4().to_string()),
            KeyValue::new("postrider.processes", processes.to_owned()),
        ])
        .with_detector(Box::new(EnvResourceDetector::new()))
        .build()
}
