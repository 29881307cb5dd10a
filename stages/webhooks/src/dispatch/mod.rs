//! Deliveries to their endpoints. The ledger says what is due; a process that holds a subscription's lease tries it.
//!
//! What the fan-out has just committed is handed over in memory, if the lease is ours and there is room; everything else is
//! loaded from the queue. Nothing in memory is needed by anybody: when a process ends, its leases run out, and whoever takes
//! them loads the same rows. So a delivery may be tried twice, under the same id and with the same bytes, and none is lost.

mod attempt;
mod current;
mod endpoint;
mod keeper;
mod record;
mod schedule;
mod store;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
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
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::{
    attempt::{Post, Reply, Target, post},
    endpoint::{Endpoint, Job},
    record::{Recorder, Tried},
    schedule::{Outcome, Schedule, Verdict},
};
use crate::{Settings, fan_out::Fresh};

/// Deliveries an endpoint has in memory at most, while there are few endpoints …
const PER_ENDPOINT: usize = 256;
/// … and at least, however many there are.
const PER_ENDPOINT_MIN: usize = 8;
/// Deliveries a process has in memory, about.
const IN_MEMORY: usize = 32_000;
/// Results that wait to be recorded. When Postgres is away, this many are kept, and nothing more is begun.
const RESULTS: usize = 2_000;
/// What a lease is longer than the longest attempt.
const LEASE_MARGIN: Duration = Duration::from_secs(30);

/// Hands deliveries over. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Dispatcher(Arc<Shared>);

/// What endpoints, keeper and fan-out share.
pub(crate) struct Shared {
    /// This process, as the holder of leases.
    id: Uuid,
    pool: PgPool,
    by_key: PreparedPool,
    bus: Bus,
    vault: Arc<Vault>,
    outbound: Outbound,
    schedule: Schedule,
    timeout: Duration,
    /// Requests under way to one endpoint at most.
    pub per_endpoint: usize,
    /// Requests under way in all. Handed out in the order they are asked for, so endpoints take turns.
    slots: Semaphore,
    /// Of these, what all the silent together may have: each of theirs is held until its time is over.
    slots_of_the_silent: Semaphore,
    endpoints: Mutex<HashMap<Uuid, Arc<Endpoint>>>,
    /// Subscriptions with something due that are not held here yet.
    wanted: Mutex<BTreeSet<store::Key>>,
    /// Endpoints that have ended: their leases can be given back.
    ended: Mutex<Vec<Uuid>>,
    wake: Notify,
    results: mpsc::Sender<Tried>,
    /// Attempts ask what their subscriptions are like now.
    questions: mpsc::Sender<current::Question>,
    shutdown: CancellationToken,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Dispatcher {
    /// Starts delivering, until shut down.
    pub fn start(deps: &Deps, settings: &Settings) -> Self {
        let by_key = deps.by_key.bulk("webhooks");
        let (results, received) = mpsc::channel(RESULTS);
        let (questions, asked) = mpsc::channel(RESULTS);
        let shared = Arc::new(Shared {
            id: new_id(),
            pool: deps.pool.clone(),
            by_key: by_key.clone(),
            bus: deps.bus.clone(),
            vault: Arc::clone(&deps.vault),
            outbound: deps.outbound.clone(),
            schedule: Schedule::new(settings.webhook_backoff.clone()),
            timeout: settings.webhook_timeout,
            per_endpoint: settings.webhook_in_flight_per_endpoint,
            slots: Semaphore::new(settings.webhook_in_flight.max(1)),
            slots_of_the_silent: Semaphore::new((settings.webhook_in_flight / 2).max(1)),
            endpoints: Mutex::default(),
            wanted: Mutex::default(),
            ended: Mutex::default(),
            wake: Notify::new(),
            results,
            questions,
            shutdown: deps.shutdown.clone(),
        });
        deps.runner.spawn("webhooks", Recorder::new(by_key.clone(), settings.webhook_give_up_after).run(received));
        deps.runner.spawn("webhooks", current::run(by_key, asked));
        let (keeping, hearing, runner) = (Arc::clone(&shared), Arc::clone(&shared), deps.runner.clone());
        deps.runner.supervise("webhooks", move || keeper::run(Arc::clone(&keeping), runner.clone()));
        deps.runner.supervise("webhooks", move || keeper::hear(Arc::clone(&hearing)));
        Self(shared)
    }

    /// Takes what was just committed.
    pub fn hand_over(&self, fresh: Vec<Fresh>) {
        let capacity = self.0.capacity();
        let mut by_endpoint: BTreeMap<store::Key, Vec<Job>> = BTreeMap::new();
        for delivery in fresh {
            let job = Job {
                delivery_id: delivery.delivery_id,
                event_id: delivery.event_id,
                event_type: delivery.event_type,
                attempts: 0,
                body: Some(delivery.body),
                trace: delivery.trace,
                due_at: delivery.due_at,
                made_at: Some(delivery.due_at),
            };
            by_endpoint.entry((delivery.tenant_id, delivery.subscription_id)).or_default().push(job);
        }
        for (key, jobs) in by_endpoint {
            let endpoint = lock(&self.0.endpoints).get(&key.1).cloned();
            let is_taken = endpoint.is_some_and(|endpoint| jobs.into_iter().all(|job| endpoint.offer(job, capacity)));
            if !is_taken {
                lock(&self.0.wanted).insert(key);
                self.0.wake();
            }
        }
    }
}

impl Shared {
    /// How many deliveries one endpoint may have in memory now.
    pub fn capacity(&self) -> usize {
        (IN_MEMORY / lock(&self.endpoints).len().max(1)).clamp(PER_ENDPOINT_MIN, PER_ENDPOINT)
    }

    /// Has the keeper look after endpoints at once.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// The longest an attempt takes, with its wait for a socket.
    pub fn longest(&self) -> Duration {
        self.timeout + LEASE_MARGIN / 3
    }

    fn lease(&self) -> Duration {
        self.timeout + LEASE_MARGIN
    }

    /// Where and how to deliver to an endpoint at this moment, by the ledger. `None`: nothing is to be posted now; what waits stands
    /// in the ledger.
    async fn current(&self, endpoint: &Endpoint, known: Arc<Target>) -> Option<Arc<Target>> {
        let (answer, looked) = oneshot::channel();
        let question = current::Question { key: (endpoint.tenant_id, endpoint.id), answer };
        self.questions.send(question).await.ok()?;
        let looked = looked.await.ok()?;
        if looked.status == SubscriptionStatus::Active {
            if looked.mark() == known.mark {
                return Some(known);
            }
            if let Some(target) = looked.target(&self.vault) {
                return Some(endpoint.retarget(target));
            }
        }
        endpoint.close();
        None
    }

    /// Tries one delivery, and has the result recorded.
    pub async fn try_one(&self, endpoint: &Arc<Endpoint>, job: Job, target: Arc<Target>) {
        let attempt = job.attempts + 1;
        let (verdict, reply) = match job.body.clone() {
            Some(body) => {
                let Some(reply) = self.post(endpoint, &job, attempt, body, target).await else {
                    return endpoint.give_back(job.delivery_id);
                };
                (self.schedule.verdict(attempt, reply.outcome, rand::random()), reply)
            }
            None => (Verdict::Dead, ERASED),
        };
        if verdict == Verdict::Disable {
            // At once, not when it is recorded: nothing more is posted to who wants no more.
            endpoint.close();
        }
        let tried = Tried {
            endpoint: Arc::clone(endpoint),
            delivery_id: job.delivery_id,
            due_at: job.due_at,
            attempt,
            verdict,
            status_code: reply.status_code,
            error_code: reply.error_code,
            duration: reply.duration,
        };
        // The recorder is there for as long as anybody sends.
        let _ = self.results.send(tried).await;
    }

    /// `None`: it was not to be posted, now that it was its turn.
    async fn post(
        &self,
        endpoint: &Endpoint,
        job: &Job,
        attempt: u16,
        body: bytes::Bytes,
        known: Arc<Target>,
    ) -> Option<Reply> {
        // Neither is ever closed.
        let _share = if endpoint.is_silent() { self.slots_of_the_silent.acquire().await.ok() } else { None };
        let _slot = self.slots.acquire().await.ok();
        // After the wait for a socket, which may be long.
        let target = self.current(endpoint, known).await?;
        let request =
            Post { delivery_id: job.delivery_id, event_id: job.event_id, event_type: &job.event_type, attempt, body };
        Gauge::WebhooksInFlight.add(1.0, []);
        let span = job.trace.as_ref().map(|trace| step(trace, endpoint, job, attempt));
        let post = post(&self.outbound, &target, request, self.timeout);
        let reply = trace::within(span.as_ref().map(Span::ambient), post).await;
        if let Some(span) = span {
            say(&span, &reply);
        }
        Gauge::WebhooksInFlight.add(-1.0, []);
        endpoint.answered(reply.is_silent);
        let outcome = if reply.outcome == Outcome::Delivered { "delivered" } else { "failed" };
        Histogram::WebhookAttemptSeconds.record(reply.duration.as_secs_f64(), [("outcome", outcome)]);
        if let (1, Some(made_at)) = (attempt, job.made_at) {
            let latency = (Utc::now() - made_at).to_std().unwrap_or_default();
            Histogram::WebhookLatencySeconds.record(latency.as_secs_f64(), []);
        }
        Some(reply)
    }
}

/// An attempt as a step of the mail's trace. Where it is posted to is the customer's, and not said.
fn step(trace: &TraceContext, endpoint: &Endpoint, job: &Job, attempt: u16) -> Span {
    let span = Span::of(SpanKind::Client, "webhooks post", trace);
    span.set("http.request.method", "POST");
    span.set_id("mail.tenant_id", endpoint.tenant_id);
    span.set_id("mail.subscription_id", endpoint.id);
    span.set_id("mail.delivery_id", job.delivery_id);
    span.set_id("mail.event_id", job.event_id);
    span.set("mail.event_type", job.event_type.clone());
    span.set("mail.attempt", i64::from(attempt));
    span
}

fn say(span: &Span, reply: &Reply) {
    if let Some(status) = reply.status_code {
        span.set("http.response.status_code", i64::from(status));
    }
    if let Some(code) = reply.error_code {
        span.fail(code);
    }
}

/// Whom it is about was erased: there is nothing to post any more.
const ERASED: Reply = Reply {
    outcome: Outcome::Failed { retry_after: None },
    status_code: None,
    error_code: Some("erased"),
    duration: Duration::ZERO,
    is_silent: false,
};
