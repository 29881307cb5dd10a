//! Traces by W3C Trace Context: through HTTP, the bus, batches and sweeps.
//!
//! A trace is taken where a caller asks for one (the sampled flag of his `traceparent`), and of a share of what comes to the front
//! doors without one (`trace-ratio`). Everything else costs a look at a header that is not there. A step is a request, or what a
//! stage does with a batch: there is none for each mail.
//!
//! What is in hand is known to the task ([`within`]): [`crate::Publication::json`] gives it to messages, [`crate::Outbound`] to
//! those who are called, and the log to its lines. Who picks work up from the ledger finds it again with [`kept`].
//!
//! Without an exporter (`postrider` without `otlp-endpoint`) no steps are recorded, and what callers send is passed on as it is.
//!
//! The spans are OpenTelemetry's own, not those of `tracing-opentelemetry`. That crate does what [`Span`] and [`Within`] do, 130
//! lines of the 600 here, and would need about half as many to set parents, links and filters. The rest has no place in it: a
//! context that is not recorded is passed on without a span, one future works on several traces at once ([`Group`]), and a context
//! is kept with work in the ledger. With an exporter, each request would also make a span of the registry only to be left out by
//! the sampler.

mod context;
mod group;
mod kept;
mod settings;
mod span;

pub use context::TraceContext;
pub use group::{Group, TracedMessage, of_work};
pub use kept::{KEPT_FOR_DAYS, TracedWork, keep, keep_all, keep_each, kept};
pub use opentelemetry::{Context as Ambient, trace::SpanKind};
pub use settings::TraceSettings;
pub use span::{Span, Within, inherit, install, scope, within};

/// Trace and step in hand, for log lines.
pub(crate) fn ids() -> Option<(String, String)> {
    use opentelemetry::trace::TraceContextExt;
    Ambient::map_current(|ambient| {
        let found = ambient.span().span_context().clone();
        found.is_valid().then(|| (found.trace_id().to_string(), found.span_id().to_string()))
    })
}
