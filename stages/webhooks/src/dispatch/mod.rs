//! Delivers events to subscribers' endpoints. The ledger says which deliveries are due; the process that holds a subscription's
//! lease attempts them.
//!
//! A delivery that the fan-out has just committed is passed on in memory, if this process holds the lease and the endpoint has
//! capacity. All others are loaded from the queue. Memory holds nothing that the ledger does not have: when a process ends, its
//! leases expire, and the next holder loads the same rows. So a delivery may be attempted twice, with the same id and the same
//! bytes, and none is lost.

mod attempt;
mod endpoint;
mod leases;
mod record;
mod schedule;
mod store;
mod subscription_reader;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use chrono::Utc;
use runner::Deps;
use runtime::{
    Bus, Gauge, Histogram, Outbound, Vault,
    plans::PreparedPool,
    trace::{self, Span, SpanKind, TraceContext},
};
use schemas::{SubscriptionStatus, new_id};
use sqlx::PgPool;
use tokio::{
    sync::{Notify, Semaphore, mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::{
    attempt::{AttemptResult, DeliveryTarget, post},
    endpoint::{Check, SubscriberEndpoint},
    record::{AttemptRecorder, FinishedAttempt},
    schedule::{AttemptOutcome, RetryDecision, decide_retry},
    subscription_reader::AttemptQuery,
};
use crate::{Settings, fan_out::FreshDeliveries};

pub(crate) use self::endpoint::DeliveryJob;

pub(crate) const NAME: &str = "webhooks";
/// The most deliveries of one endpoint in memory, while there are few endpoints …
const PER_ENDPOINT: usize = 256;
/// … and the least, however many endpoints there are.
const PER_ENDPOINT_MIN: usize = 8;
/// About how many deliveries a process has in memory.
const IN_MEMORY: usize = 32_000;
/// The most results that wait to be recorded. While Postgres is unavailable, no attempt begins beyond this number.
const RESULTS: usize = 2_000;
/// How much longer a lease is than the longest attempt.
const LEASE_MARGIN: Duration = Duration::from_secs(30);

/// Delivers events to endpoints: the state that these, the lease manager and the fan-out share.
pub(crate) struct Dispatcher {
    /// This process, as the holder of leases.
    id: Uuid,
    pool: PgPool,
    by_key: PreparedPool,
    bus: Bus,
    vault: Arc<Vault>,
    outbound: Outbound,
    /// The pauses between attempts. There are as many attempts as pauses.
    pauses: Vec<Duration>,
    timeout: Duration,
    /// The most requests in flight to one endpoint.
    pub per_endpoint: usize,
    /// Permits for all requests in flight. They are granted in the order of the calls, so every endpoint gets its share.
    slots: Semaphore,
    /// The permits that all silent endpoints together may use: each of their requests lasts until its timeout.
    silent_slots: Semaphore,
    endpoints: Mutex<HashMap<Uuid, Arc<SubscriberEndpoint>>>,
    /// Subscriptions with due deliveries whose lease this process does not hold yet.
    wanted: Mutex<BTreeSet<store::SubscriptionKey>>,
    /// Endpoints that have ended, whose leases can be released.
    ended: Mutex<Vec<Uuid>>,
    request_work: Notify,
    results: mpsc::Sender<FinishedAttempt>,
    /// Attempts query the current state of their subscription here.
    queries: mpsc::Sender<AttemptQuery>,
    shutdown: CancellationToken,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Dispatcher {
    /// Starts delivering, until shut down.
    pub fn start(deps: &Deps, settings: &Settings) -> Arc<Self> {
        let by_key = deps.by_key.bulk(NAME);
        let (results, received) = mpsc::channel(RESULTS);
        let (queries, asked) = mpsc::channel(RESULTS);
        let shared = Arc::new(Self::new(deps, settings, results, queries));
        deps.runner.spawn(NAME, AttemptRecorder::new(by_key.clone()).run(received));
        deps.runner.spawn(NAME, subscription_reader::answer_queries(by_key, asked));
        let (keeping, hearing, runner) = (Arc::clone(&shared), Arc::clone(&shared), deps.runner.clone());
        deps.runner.supervise(NAME, move || leases::run(Arc::clone(&keeping), runner.clone()));
        deps.runner.supervise(NAME, move || leases::receive_due_notifications(Arc::clone(&hearing)));
        shared
    }

    /// Takes deliveries that were just committed.
    pub fn offer_fresh(&self, fresh: FreshDeliveries) {
        let capacity = self.capacity();
        for (key, jobs) in fresh {
            let endpoint = lock(&self.endpoints).get(&key.1).cloned();
            let is_taken = endpoint.is_some_and(|endpoint| jobs.into_iter().all(|job| endpoint.offer(job, capacity)));
            if !is_taken {
                lock(&self.wanted).insert(key);
                self.request_work();
            }
        }
    }

    /// Marks that the ledger has more deliveries for those of these subscriptions that are leased here.
    fn mark_more_due(&self, ids: impl IntoIterator<Item = Uuid>) {
        let endpoints = lock(&self.endpoints);
        ids.into_iter().filter_map(|id| endpoints.get(&id)).for_each(|endpoint| endpoint.mark_more_due());
    }

    fn new(
        deps: &Deps,
        settings: &Settings,
        results: mpsc::Sender<FinishedAttempt>,
        queries: mpsc::Sender<AttemptQuery>,
    ) -> Self {
        Self {
            id: new_id(),
            pool: deps.pool.clone(),
            by_key: deps.by_key.bulk(NAME),
            bus: deps.bus.clone(),
            vault: Arc::clone(&deps.vault),
            outbound: deps.outbound.clone(),
            pauses: settings.webhook_backoff.clone(),
            timeout: settings.webhook_timeout,
            per_endpoint: settings.webhook_in_flight_per_endpoint,
            slots: Semaphore::new(settings.webhook_in_flight.max(1)),
            silent_slots: Semaphore::new((settings.webhook_in_flight / 2).max(1)),
            endpoints: Mutex::default(),
            wanted: Mutex::default(),
            ended: Mutex::default(),
            request_work: Notify::new(),
            results,
            queries,
            shutdown: deps.shutdown.clone(),
        }
    }

    /// How many deliveries one endpoint may have in memory now.
    pub fn capacity(&self) -> usize {
        (IN_MEMORY / lock(&self.endpoints).len().max(1)).clamp(PER_ENDPOINT_MIN, PER_ENDPOINT)
    }

    /// Makes the lease manager take and load at once.
    pub fn request_work(&self) {
        self.request_work.notify_one();
    }

    /// The longest duration of an attempt, with its wait for a socket.
    pub fn attempt_max(&self) -> Duration {
        self.timeout + LEASE_MARGIN / 3
    }

    fn lease(&self) -> Duration {
        self.timeout + LEASE_MARGIN
    }

    /// The endpoint's current target from the ledger, and whether the event still has its body there. `None`: nothing may be posted now,
    /// and the deliveries stay in the queue. What is read serves the deliveries that come next, for a moment: else an endpoint with few
    /// requests in flight would wait for the ledger as long as for its receiver.
    async fn current_target(
        &self,
        endpoint: &SubscriberEndpoint,
        event_id: Uuid,
        known: Arc<DeliveryTarget>,
    ) -> Option<(Arc<DeliveryTarget>, bool)> {
        if let Some(checked) = endpoint.take_checked(event_id) {
            return Some(checked);
        }
        let asked_at = Instant::now();
        let events = endpoint.events_to_check(event_id);
        let (answer, answered) = oneshot::channel();
        let query = AttemptQuery { key: (endpoint.tenant_id, endpoint.id), events: events.clone(), answer };
        self.queries.send(query).await.ok()?;
        let (state, bodies) = answered.await.ok()?;
        let target = match state.status {
            SubscriptionStatus::Active if state.version() == known.version => {
                endpoint.refresh_failing_since(state.failing_since, asked_at);
                Some(known)
            }
            SubscriptionStatus::Active => {
                state.target(&self.vault).map(|target| endpoint.set_target(target, state.failing_since))
            }
            _ => None,
        };
        let Some(target) = target else {
            endpoint.close();
            return None;
        };
        let has_body: HashMap<Uuid, bool> =
            events.into_iter().skip(1).map(|event| (event, bodies.contains(&(endpoint.id, event)))).collect();
        endpoint.keep_check(Check { asked_at, target: Arc::clone(&target), has_body, begun: 0 });
        Some((target, bodies.contains(&(endpoint.id, event_id))))
    }

    /// Attempts one delivery and gives the result to the recorder.
    pub async fn attempt_delivery(
        &self,
        endpoint: &Arc<SubscriberEndpoint>,
        mut job: DeliveryJob,
        target: Arc<DeliveryTarget>,
    ) {
        let (reply, target) = match job.body.take() {
            Some(body) => match self.post(endpoint, &job, body, target).await {
                Some(posted) => posted,
                None => return endpoint.return_to_ledger(job.delivery_id),
            },
            None => (BODY_GONE, target),
        };
        let decision = decide_retry(&self.pauses, job.attempt(), reply.outcome, rand::random());
        if decision == RetryDecision::Disable && endpoint.has_version(target.version) {
            // At once, before the result is recorded: the receiver wants no more requests.
            endpoint.close();
        }
        let attempt = FinishedAttempt { endpoint: Arc::clone(endpoint), target, job, decision, reply };
        // The recorder runs as long as there are senders.
        let _ = self.results.send(attempt).await;
    }

    /// Posts one delivery, unless its body is gone meanwhile, and says to which target. `None`: the subscription is paused or disabled,
    /// and nothing was posted.
    async fn post(
        &self,
        endpoint: &SubscriberEndpoint,
        job: &DeliveryJob,
        body: bytes::Bytes,
        known: Arc<DeliveryTarget>,
    ) -> Option<(AttemptResult, Arc<DeliveryTarget>)> {
        // Neither semaphore is ever closed.
        let _share = if endpoint.is_silent() { self.silent_slots.acquire().await.ok() } else { None };
        let _slot = self.slots.acquire().await.ok();
        // Read after the wait for a socket, which may be long.
        let (target, has_body) = self.current_target(endpoint, job.event_id, known).await?;
        if !has_body {
            return Some((BODY_GONE, target));
        }
        let _in_flight = Gauge::WebhooksInFlight.count_in_flight();
        let span = job.trace.as_ref().map(|trace| attempt_span(trace, endpoint, job));
        let post = post(&self.outbound, &target, job, body, self.timeout);
        let reply = trace::within(span.as_ref().map(Span::ambient), post).await;
        if let Some(span) = span {
            if let Some(status) = reply.status_code {
                span.set("http.response.status_code", i64::from(status));
            }
            if let Some(code) = reply.error_code {
                span.fail(code);
            }
        }
        endpoint.record_presence(reply.is_silent);
        let outcome = if reply.outcome == AttemptOutcome::Delivered { "delivered" } else { "failed" };
        Histogram::WebhookAttemptSeconds.record(reply.duration.as_secs_f64(), [("outcome", outcome)]);
        if (job.attempt(), job.replayed) == (1, 0) {
            let latency = (Utc::now() - job.made_at).to_std().unwrap_or_default();
            Histogram::WebhookLatencySeconds.record(latency.as_secs_f64(), []);
        }
        Some((reply, target))
    }
}

/// The span of an attempt in the mail's trace. The URL belongs to the customer and is left out.
fn attempt_span(trace: &TraceContext, endpoint: &SubscriberEndpoint, job: &DeliveryJob) -> Span {
    let span = Span::of(SpanKind::Client, "webhooks post", trace);
    span.set("http.request.method", "POST");
    span.set_id("mail.tenant_id", endpoint.tenant_id);
    span.set_id("mail.subscription_id", endpoint.id);
    span.set_id("mail.delivery_id", job.delivery_id);
    span.set_id("mail.event_id", job.event_id);
    span.set("mail.event_type", job.event_type.clone());
    span.set("mail.attempt", i64::from(job.attempt()));
    span
}

/// The result for a delivery whose body is gone: the contact it is about was erased, or it was held by pauses for longer than bodies
/// are kept.
const BODY_GONE: AttemptResult = AttemptResult {
    outcome: AttemptOutcome::BodyGone,
    status_code: None,
    error_code: Some("body_gone"),
    duration: Duration::ZERO,
    is_silent: false,
};
