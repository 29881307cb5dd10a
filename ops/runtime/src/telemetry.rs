//! Logs as JSON lines with ids only.

use std::sync::{Mutex, OnceLock, PoisonError};

use thiserror::Error;
use tracing::{Event, Subscriber};
use tracing_subscriber::{
    EnvFilter, Registry,
    fmt::{self, FmtContext, FormatEvent, FormatFields, format::Writer},
    layer::SubscriberExt,
    registry::LookupSpan,
    reload::{self, Handle},
    util::SubscriberInitExt,
};

use crate::trace;

/// The target of lines about panics. They are written whatever the filter: nothing else reports a panic.
const PANICS: &str = "panic";
/// Room for a usual line.
const LINE_BYTES: usize = 512;

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
}

/// The filter in force: its text, and what replaces it.
struct Filtering {
    handle: Handle<EnvFilter, Registry>,
    text: Mutex<String>,
}

static FILTERING: OnceLock<Filtering> = OnceLock::new();

/// Starts JSON logs on standard error, for a process that serves. From now on a panic is a line of them that says where, and not
/// what: its message may quote data, as that of a slice out of range quotes the text that was sliced.
pub fn init_logs(filter: &str) -> Result<(), TelemetryError> {
    start(filter)?;
    std::panic::set_hook(Box::new(|panic| {
        let (file, line) = panic.location().map_or(("", 0), |place| (place.file(), place.line()));
        tracing::error!(target: PANICS, file, line, "panicked");
    }));
    Ok(())
}

fn start(filter: &str) -> Result<(), TelemetryError> {
    let (layer, handle) = reload::Layer::new(parse(filter)?);
    let lines = fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false)
        .with_writer(std::io::stderr)
        .map_event_format(Traced);
    tracing_subscriber::registry().with(layer).with(lines).try_init()?;
    // Only the first start comes this far.
    let _ = FILTERING.set(Filtering { handle, text: Mutex::new(filter.to_owned()) });
    Ok(())
}

/// Lines with the trace and the step they were written in.
struct Traced<F>(F);

impl<S, N, F> FormatEvent<S, N> for Traced<F>
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    N: for<'writer> FormatFields<'writer> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let Some((trace, step)) = trace::ids() else { return self.0.format_event(context, writer, event) };
        let mut line = String::with_capacity(LINE_BYTES);
        self.0.format_event(context, Writer::new(&mut line), event)?;
        match line.strip_prefix('{') {
            Some(rest) => write!(writer, r#"{{"trace_id":"{trace}","span_id":"{step}",{rest}"#),
            None => writer.write_str(&line),
        }
    }
}

/// The log filter in force, as the setting or the last [`set_log_filter`] had it; empty before logs are started.
#[must_use]
pub fn log_filter() -> String {
    let text = |filtering: &Filtering| filtering.text.lock().unwrap_or_else(PoisonError::into_inner).clone();
    FILTERING.get().map(text).unwrap_or_default()
}

/// Changes the log filter of this process while it runs; answers the one that was in force before.
/// A filter that does not parse is an error, and the old one stays.
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
        .add_directive("rmcp=off".parse()?)
        .add_directive(format!("{PANICS}=error").parse()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_filter_changes_at_run_time() {
        assert!(matches!(set_log_filter("debug"), Err(TelemetryError::NotStarted)));
        // Without the hook: what panics in the other tests of this process is to be read.
        start("warn").unwrap();
        assert!(!tracing::enabled!(tracing::Level::DEBUG));
        assert_eq!(set_log_filter("warn,runtime=debug").unwrap(), "warn");
        assert!(tracing::enabled!(tracing::Level::DEBUG));
        assert!(matches!(set_log_filter("=nonsense="), Err(TelemetryError::Filter(_))));
        assert_eq!(log_filter(), "warn,runtime=debug");
        assert_eq!(set_log_filter("warn,rmcp=trace").unwrap(), "warn,runtime=debug");
        assert!(!tracing::enabled!(target: "rmcp", tracing::Level::ERROR));
        set_log_filter("off").unwrap();
        assert!(tracing::enabled!(target: PANICS, tracing::Level::ERROR));
    }
}
