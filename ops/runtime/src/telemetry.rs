//! Logs as JSON lines with ids only, and the Prometheus recorder.

use std::{
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use thiserror::Error;
use tracing_subscriber::{
    EnvFilter, Registry, fmt,
    layer::SubscriberExt,
    reload::{self, Handle},
    util::SubscriberInitExt,
};

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
    /// The filter cannot be changed.
    #[error("log filter in force")]
    Reload(#[from] reload::Error),
    /// This process does not log yet.
    #[error("logs are not started")]
    NotStarted,
    /// Another recorder is installed.
    #[error("metrics recorder")]
    Recorder(#[from] metrics_exporter_prometheus::BuildError),
}

/// The filter in force: its text, and what replaces it.
struct Filtering {
    handle: Handle<EnvFilter, Registry>,
    text: Mutex<String>,
}

static FILTERING: OnceLock<Filtering> = OnceLock::new();

/// Starts JSON logs on standard error.
///
/// # Errors
/// For a filter that does not parse, or a second start.
pub fn init_logs(filter: &str) -> Result<(), TelemetryError> {
    let (layer, handle) = reload::Layer::new(parse(filter)?);
    let lines = fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false)
        .with_writer(std::io::stderr);
    tracing_subscriber::registry().with(layer).with(lines).try_init()?;
    // Only the first start comes this far.
    let _ = FILTERING.set(Filtering { handle, text: Mutex::new(filter.to_owned()) });
    Ok(())
}

/// The log filter in force, as the setting or the last [`set_log_filter`] had it; empty before logs are started.
#[must_use]
pub fn log_filter() -> String {
    FILTERING
        .get()
        .map(|filtering| filtering.text.lock().unwrap_or_else(PoisonError::into_inner).clone())
        .unwrap_or_default()
}

/// Changes the log filter of this process while it runs; answers the one that was in force before.
///
/// # Errors
/// For a filter that does not parse (the old one stays), or before logs are started.
pub fn set_log_filter(filter: &str) -> Result<String, TelemetryError> {
    let parsed = parse(filter)?;
    let filtering = FILTERING.get().ok_or(TelemetryError::NotStarted)?;
    // Held over both, so that of two changes at once the text is of the one that won.
    let mut text = filtering.text.lock().unwrap_or_else(PoisonError::into_inner);
    filtering.handle.reload(parsed)?;
    Ok(std::mem::replace(&mut *text, filter.to_owned()))
}

fn parse(filter: &str) -> Result<EnvFilter, TelemetryError> {
    // Notices of Postgres ("no transaction in progress" from the rollback hook) are not news.
    // The assistant protocol's library logs what clients send and are answered.
    Ok(EnvFilter::try_new(filter)?
        .add_directive("sqlx::postgres::notice=off".parse()?)
        .add_directive("rmcp=off".parse()?))
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_changes_while_the_process_runs_and_a_bad_one_changes_nothing() {
        assert!(matches!(set_log_filter("debug"), Err(TelemetryError::NotStarted)));
        init_logs("warn").unwrap();
        assert!(!tracing::enabled!(tracing::Level::DEBUG));
        assert_eq!(set_log_filter("warn,runtime=debug").unwrap(), "warn");
        assert!(tracing::enabled!(tracing::Level::DEBUG));
        assert!(matches!(set_log_filter("=nonsense="), Err(TelemetryError::Filter(_))));
        assert_eq!(log_filter(), "warn,runtime=debug");
        assert_eq!(set_log_filter("warn,rmcp=trace").unwrap(), "warn,runtime=debug");
        assert!(!tracing::enabled!(target: "rmcp", tracing::Level::ERROR));
    }
}
