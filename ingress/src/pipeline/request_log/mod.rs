//! The request log: the calls of a tenant and how each was answered, for `GET /v1/requests`.
//!
//! It has every call that may change something, and every refused one, over HTTP and over the bus. It has no bodies, queries or values of
//! paths. No answer waits for it: calls go into a bounded queue and are written in groups. It may lose entries; the truth is in the ledger.

mod names;
mod writer;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use chrono::{DateTime, Utc};
use http::StatusCode;
use runtime::{Counter, plans::PreparedPool};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

pub(crate) use self::names::known_part;
pub(crate) use super::error::RefusalReason;
use super::{Operation, auth::keys::Caller, error::ApiError, observed::SeenTenant};

/// Calls that wait to be written; what comes on top is dropped and counted. Some 3 MB.
const WAITING_MAX: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LoggedTenant {
    /// It is known.
    Id(Uuid),
    /// As the caller names it, of a call that was refused before its tenant was looked up. The writer finds it, or leaves the call out.
    Name(String),
}

/// A call that was answered.
#[derive(Debug, Clone)]
pub(crate) struct LoggedCall {
    pub caller: Arc<Caller>,
    pub tenant: LoggedTenant,
    /// `http` or `bus`.
    pub via: &'static str,
    pub operation: &'static Operation,
    pub status: StatusCode,
    pub refusal: Option<RefusalReason>,
    /// True if it was answered with what an earlier call with its idempotency key was answered.
    pub replayed: bool,
    pub request_id: Option<String>,
    pub duration: Duration,
    pub at: DateTime<Utc>,
}

impl LoggedCall {
    /// The entry of a call over the bus, without the rest. `None` for what the log leaves out: operations above tenants, and reads that
    /// were not refused.
    pub fn new(
        caller: Arc<Caller>,
        tenant: LoggedTenant,
        operation: &'static Operation,
        status: StatusCode,
    ) -> Option<Self> {
        let is_of_tenant = operation.access.is_some_and(|access| access.in_tenant);
        let is_noted = operation.is_write() || status.is_client_error() || status.is_server_error();
        (is_of_tenant && is_noted).then(|| Self {
            caller,
            tenant,
            via: "bus",
            operation,
            status,
            refusal: None,
            replayed: false,
            request_id: None,
            duration: Duration::ZERO,
            at: Utc::now(),
        })
    }
}

/// Takes calls without waiting. They are written at most about a second later.
#[derive(Debug)]
pub(crate) struct RequestLog {
    /// None once it is closed.
    queue: Mutex<Option<mpsc::Sender<LoggedCall>>>,
    writer: TaskTracker,
}

impl RequestLog {
    /// Starts to write. Must be called in a runtime; connects at the first call.
    pub fn start(by_key: PreparedPool) -> Self {
        let (log, waiting) = Self::with_capacity(WAITING_MAX);
        log.writer.spawn(writer::run(by_key, waiting));
        log
    }

    fn with_capacity(waiting_max: usize) -> (Self, mpsc::Receiver<LoggedCall>) {
        let (queue, waiting) = mpsc::channel(waiting_max);
        (Self { queue: Mutex::new(Some(queue)), writer: TaskTracker::new() }, waiting)
    }

    /// Takes a call, or drops and counts it when too many wait.
    pub fn note(&self, call: LoggedCall) {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.as_ref().is_none_or(|queue| queue.try_send(call).is_err()) {
            count(1, "dropped");
        }
    }

    /// Takes a call over the bus that was refused before it became a request.
    pub fn note_refused(&self, caller: Arc<Caller>, operation: &'static Operation, body: &[u8], error: &ApiError) {
        let seen = SeenTenant::default();
        seen.read_name(body);
        let tenant = seen.logged(&caller);
        if let Some(call) = tenant.and_then(|tenant| LoggedCall::new(caller, tenant, operation, error.status)) {
            self.note(LoggedCall { refusal: Some(RefusalReason::of(error)), ..call });
        }
    }

    /// Takes no more calls, and waits until those that wait are written.
    pub async fn close(&self) {
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.writer.close();
        self.writer.wait().await;
    }
}

fn count(calls: u64, outcome: &'static str) {
    Counter::RequestLogTotal.add(calls, [("outcome", outcome)]);
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use metrics_exporter_prometheus::PrometheusBuilder;
    use schemas::Environment;

    use super::*;
    use crate::routes;

    pub(super) fn call() -> LoggedCall {
        let caller = Arc::new(Caller::on_the_bus(schemas::new_id(), "shop".to_owned(), Environment::Production));
        let tenant = LoggedTenant::Id(schemas::new_id());
        LoggedCall::new(caller, tenant, routes::operation("createContact").unwrap(), StatusCode::CREATED).unwrap()
    }

    #[test]
    fn a_full_queue_drops_and_counts_and_nobody_waits() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let (log, mut waiting) = RequestLog::with_capacity(2);
        metrics::with_local_recorder(&recorder, || {
            let begun = Instant::now();
            for _ in 0..1_000 {
                log.note(call());
            }
            assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        });
        assert!(recorder.handle().render().contains("mail_request_log_total{outcome=\"dropped\"} 998"));
        assert_eq!(std::iter::from_fn(|| waiting.try_recv().ok()).count(), 2);
    }

    #[test]
    fn reads_that_succeed_and_operations_above_tenants_are_left_out() {
        let LoggedCall { caller, tenant, .. } = call();
        let is_noted = |name: &str, status: u16| {
            let (operation, status) = (routes::operation(name).unwrap(), StatusCode::from_u16(status).unwrap());
            LoggedCall::new(Arc::clone(&caller), tenant.clone(), operation, status).is_some()
        };
        assert!(is_noted("createContact", 201) && is_noted("createContact", 400) && is_noted("getContact", 404));
        assert!(!is_noted("getContact", 200) && !is_noted("linkTenant", 201) && !is_noted("getPlatformHealth", 403));
    }
}
