//! Logs as JSON lines with ids only, and the Prometheus recorder.

use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use thiserror::Error;
use tracing_subscriber::EnvFilter;

/// Buckets of every `…_seconds` histogram: from an SMTP command on loopback to the longest transaction.
const SECONDS_BUCKETS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// Telemetry that cannot start.
#[derive(Debug, Error)]
pub enum TelemetryError {
    /// The log filter does not parse.
    #[error("log filter")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// Another subscriber is installed.
    #[error("log subscriber")]
    Subscriber(#[from] tracing_subscriber::util::TryInitError),
    /// Another recorder is installed.
    #[error("metrics recorder")]
    Recorder(#[from] metrics_exporter_prometheus::BuildError),
}

/// Starts JSON logs on standard error.
///
/// # Errors
/// For a filter that does not parse, or a second start.
pub fn init_logs(filter: &str) -> Result<(), TelemetryError> {
    use tracing_subscriber::util::SubscriberInitExt;
    // Notices of Postgres ("no transaction in progress" from the rollback hook) are not news.
    // The assistant protocol's library logs what clients send and are answered.
    let filter = EnvFilter::try_new(filter)?
        .add_directive("sqlx::postgres::notice=off".parse()?)
        .add_directive("rmcp=off".parse()?);
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false)
        .with_writer(std::io::stderr)
        .with_env_filter(filter)
        .finish()
        .try_init()?;
    Ok(())
}

/// Installs the Prometheus recorder and keeps its histograms from growing. Call inside a runtime, once per process.
///
/// # Errors
/// When a recorder is installed already.
pub fn init_metrics(processes: &str) -> Result<PrometheusHandle, TelemetryError> {
    let handle = PrometheusBuilder::new().set_buckets(SECONDS_BUCKETS)?.install_recorder()?;
    crate::metric::describe();
    #[allow(clippy::disallowed_macros, reason = "its version label is known at compile time, the other only now")]
    metrics::gauge!(crate::Gauge::BuildInfo.name(), "version" => env!("CARGO_PKG_VERSION"), "processes" => processes.to_owned())
        .set(1.0);
    let upkeep = handle.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP_EVERY).await;
            upkeep.run_upkeep();
        }
    });
    Ok(handle)
}
