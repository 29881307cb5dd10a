//! One subscription while this process delivers to it: a bounded queue and a task with a few requests in flight. Endpoints share
//! only the process's sockets, so a slow receiver delays only its own deliveries.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::stream::{FuturesUnordered, StreamExt};
use runtime::trace::TraceContext;
use tokio::{sync::Notify, time::Instant};
use uuid::Uuid;

use super::{Dispatcher, attempt::DeliveryTarget};

/// Deliveries in memory for a silent endpoint. The others wait in the ledger, where they cost nothing.
const SILENT_AHEAD: usize = 4;
/// The fewest and the most deliveries that are checked ahead …
const CHECK_AHEAD: (usize, usize) = (2, 64);
/// … and for how long that counts. A request that left so long before a change is answered arrives after it all the same.
const CHECK_VALID: Duration = Duration::from_millis(5);

/// Whether the receiver answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// No attempt has been made yet.
    Unknown,
    /// The last attempt was answered.
    Answers,
    /// The last attempt was not answered, or late.
    Silent,
}

/// A delivery to attempt.
#[derive(Debug, Clone)]
pub(crate) struct DeliveryJob {
    pub delivery_id: Uuid,
    pub event_id: Uuid,
    pub event_type: String,
    /// Attempts before this one.
    pub attempts: u16,
    /// `None`: it is gone, with the contact it is about or by its age.
    pub body: Option<Bytes>,
    /// The trace of the mail it is about.
    pub trace: Option<TraceContext>,
    /// Its position in the queue.
    pub due_at: DateTime<Utc>,
    /// When the delivery was created.
    pub made_at: DateTime<Utc>,
    /// How often a replay asked for it since.
    pub replayed: i32,
}

impl DeliveryJob {
    /// The number of its next attempt, from 1.
    pub fn attempt(&self) -> u16 {
        self.attempts + 1
    }
}

/// What the ledger said a moment ago about deliveries that come next.
#[derive(Debug)]
pub(crate) struct Check {
    /// Before the ledger was read.
    pub asked_at: Instant,
    pub target: Arc<DeliveryTarget>,
    /// The events that were asked for and have not been begun since, and whether they have a body.
    pub has_body: HashMap<Uuid, bool>,
    /// How many were begun since.
    pub begun: usize,
}

/// A subscription whose lease this process holds.
#[derive(Debug)]
pub(crate) struct SubscriberEndpoint {
    pub tenant_id: Uuid,
    pub id: Uuid,
    state: Mutex<EndpointState>,
    changed: Notify,
}

#[derive(Debug)]
struct EndpointState {
    target: Arc<DeliveryTarget>,
    queue: VecDeque<DeliveryJob>,
    /// Deliveries in the queue, in flight, or not recorded yet. They are not loaded again.
    known: HashSet<Uuid>,
    /// The ledger may have more due deliveries.
    has_more: bool,
    /// How often deliveries were left to the ledger. Detects a load that began before.
    left_to_ledger: u64,
    lease_until: Instant,
    is_open: bool,
    failing_since: Option<DateTime<Utc>>,
    /// When a result last changed that.
    failing_recorded_at: Instant,
    presence: Presence,
    active_at: Instant,
    check: Option<Check>,
}

impl EndpointState {
    /// How many deliveries it may have in memory, given the capacity of an answering endpoint.
    fn queue_limit(&self, capacity: usize) -> usize {
        if self.presence == Presence::Silent { SILENT_AHEAD.min(capacity) } else { capacity }
    }

    /// Records that deliveries are left to the ledger.
    fn leave_to_ledger(&mut self) {
        self.has_more = true;
        self.left_to_ledger += 1;
    }

    /// Keeps the beginning of the queue, and leaves the rest to the ledger.
    fn truncate_queue(&mut self, length: usize) {
        for job in self.queue.split_off(length.min(self.queue.len())) {
            self.known.remove(&job.delivery_id);
            self.leave_to_ledger();
        }
    }
}

/// How many deliveries an endpoint can load from the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoadRequest {
    /// How many it can take.
    pub capacity: usize,
    /// How many it has already: they come first in the ledger, too.
    pub known: usize,
    left_to_ledger: u64,
}

impl SubscriberEndpoint {
    pub fn new(
        tenant_id: Uuid,
        id: Uuid,
        target: DeliveryTarget,
        lease_until: Instant,
        failing_since: Option<DateTime<Utc>>,
    ) -> Self {
        let state = EndpointState {
            target: Arc::new(target),
            queue: VecDeque::new(),
            known: HashSet::new(),
            has_more: true,
            left_to_ledger: 0,
            lease_until,
            is_open: true,
            failing_since,
            failing_recorded_at: Instant::now(),
            // After a restart there may be thousands that did not answer before it: they begin with their share of the sockets.
            presence: if failing_since.is_some() { Presence::Silent } else { Presence::Unknown },
            active_at: Instant::now(),
            check: None,
        };
        Self { tenant_id, id, state: Mutex::new(state), changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, EndpointState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a job from the fan-out. A job beyond the limit stays in the ledger. `false`: the endpoint is closed.
    pub fn offer(&self, job: DeliveryJob, capacity: usize) -> bool {
        let mut state = self.state();
        if !state.is_open {
            return false;
        }
        if state.queue.len() >= state.queue_limit(capacity) {
            state.leave_to_ledger();
        } else if state.known.insert(job.delivery_id) {
            state.queue.push_back(job);
        }
        drop(state);
        self.changed.notify_one();
        true
    }

    /// Marks that the ledger may have more due deliveries.
    pub fn mark_more_due(&self) {
        self.state().leave_to_ledger();
    }

    /// How many deliveries to load now, if any: a few large loads rather than many small ones.
    pub fn load_request(&self, capacity: usize) -> Option<LoadRequest> {
        let state = self.state();
        let limit = state.queue_limit(capacity);
        let can_load = state.is_open && state.has_more && state.queue.len() <= limit / 4;
        can_load.then(|| LoadRequest {
            capacity: limit.saturating_sub(state.queue.len()),
            known: state.known.len(),
            left_to_ledger: state.left_to_ledger,
        })
    }

    /// The deliveries that it does not have yet, as many as were requested.
    pub fn filter_unknown(&self, due: Vec<(Uuid, DateTime<Utc>)>, request: LoadRequest) -> Vec<(Uuid, DateTime<Utc>)> {
        let state = self.state();
        due.into_iter().filter(|(id, _)| !state.known.contains(id)).take(request.capacity).collect()
    }

    /// Adds loaded jobs. `is_all`: the ledger had no more.
    pub fn add_loaded(&self, jobs: Vec<DeliveryJob>, request: LoadRequest, is_all: bool) {
        let mut state = self.state();
        if is_all && state.left_to_ledger == request.left_to_ledger {
            state.has_more = false;
        }
        for job in jobs {
            if state.is_open && state.known.insert(job.delivery_id) {
                state.queue.push_back(job);
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// The next job, if one may begin: no attempt may outlast the lease.
    fn next_job(&self, attempt_max: Duration) -> Option<(DeliveryJob, Arc<DeliveryTarget>)> {
        let mut state = self.state();
        let now = Instant::now();
        if !state.is_open || state.lease_until < now + attempt_max {
            return None;
        }
        let job = state.queue.pop_front()?;
        state.active_at = now;
        Some((job, Arc::clone(&state.target)))
    }

    /// How many requests may be in flight: one until an attempt is answered, so that silent receivers use few sockets.
    fn concurrency(&self, most: usize) -> usize {
        if self.state().presence == Presence::Answers { most.max(1) } else { 1 }
    }

    /// True if the last attempt was not answered in time.
    pub fn is_silent(&self) -> bool {
        self.state().presence == Presence::Silent
    }

    /// Records whether an attempt was answered. A silent endpoint keeps only the beginning of its queue.
    pub fn record_presence(&self, is_silent: bool) {
        let mut state = self.state();
        state.presence = if is_silent { Presence::Silent } else { Presence::Answers };
        let limit = state.queue_limit(usize::MAX);
        state.truncate_queue(limit);
    }

    /// Marks that the result of a delivery is in the ledger.
    pub fn recorded(&self, delivery: Uuid) {
        self.state().known.remove(&delivery);
    }

    pub fn failing_since(&self) -> Option<DateTime<Utc>> {
        self.state().failing_since
    }

    /// Takes over what a result has changed.
    pub fn set_failing_since(&self, since: Option<DateTime<Utc>>) {
        let mut state = self.state();
        state.failing_since = since;
        state.failing_recorded_at = Instant::now();
    }

    /// Takes over what was read, for a resumption ends the count of failures; unless a result was recorded since it was asked for.
    pub fn refresh_failing_since(&self, since: Option<DateTime<Utc>>, asked_at: Instant) {
        let mut state = self.state();
        if state.failing_recorded_at < asked_at {
            state.failing_since = since;
        }
    }

    pub fn renewed(&self, lease_until: Instant) {
        self.state().lease_until = lease_until;
        self.changed.notify_one();
    }

    pub fn has_version(&self, version: u64) -> bool {
        self.state().target.version == version
    }

    /// Delivers to this target from now on. It comes with its own count of failures: a new address has none yet.
    pub fn set_target(&self, target: DeliveryTarget, failing_since: Option<DateTime<Utc>>) -> Arc<DeliveryTarget> {
        let mut state = self.state();
        if *state.target != target {
            state.target = Arc::new(target);
            state.check = None;
        }
        state.failing_since = failing_since;
        Arc::clone(&state.target)
    }

    /// What is known of the event from a check that still counts: the target, and whether it has a body.
    pub fn take_checked(&self, event: Uuid) -> Option<(Arc<DeliveryTarget>, bool)> {
        let mut state = self.state();
        let check = state.check.as_mut().filter(|check| check.asked_at.elapsed() < CHECK_VALID)?;
        let has_body = check.has_body.remove(&event)?;
        check.begun += 1;
        Some((Arc::clone(&check.target), has_body))
    }

    /// The events to check together: this one, and while attempts follow each other closely those that come next, twice as many as the last
    /// check served.
    pub fn events_to_check(&self, event: Uuid) -> Vec<Uuid> {
        let state = self.state();
        let recent = state.check.as_ref().filter(|check| check.asked_at.elapsed() < CHECK_VALID * 2);
        let ahead = recent.map_or(0, |check| (check.begun * 2).clamp(CHECK_AHEAD.0, CHECK_AHEAD.1));
        std::iter::once(event).chain(state.queue.iter().take(ahead).map(|job| job.event_id)).collect()
    }

    /// Keeps a check, unless there is a newer one.
    pub fn keep_check(&self, check: Check) {
        let mut state = self.state();
        if state.check.as_ref().is_none_or(|kept| kept.asked_at <= check.asked_at) {
            state.check = Some(check);
        }
    }

    /// Leaves a delivery to the ledger that was begun and not posted.
    pub fn return_to_ledger(&self, delivery: Uuid) {
        let mut state = self.state();
        state.known.remove(&delivery);
        state.leave_to_ledger();
    }

    /// Begins no more attempts. The queue is left to the ledger.
    pub fn close(&self) {
        let mut state = self.state();
        state.is_open = false;
        state.check = None;
        state.truncate_queue(0);
        drop(state);
        self.changed.notify_one();
    }

    /// True if the endpoint had no deliveries for this time, so that its lease can be released.
    pub fn is_idle(&self, after: Duration) -> bool {
        let state = self.state();
        state.is_open && state.known.is_empty() && !state.has_more && state.active_at.elapsed() >= after
    }

    /// Delivers until it is closed, then finishes the attempts in flight.
    pub async fn run(self: Arc<Self>, shared: Arc<Dispatcher>) {
        let mut in_flight = FuturesUnordered::new();
        loop {
            while in_flight.len() < self.concurrency(shared.per_endpoint) {
                let Some((job, target)) = self.next_job(shared.attempt_max()) else { break };
                in_flight.push(Box::pin(shared.attempt_delivery(&self, job, target)));
            }
            if self.load_request(shared.capacity()).is_some() {
                shared.request_work();
            }
            if in_flight.is_empty() && !self.state().is_open {
                return;
            }
            tokio::select! {
                Some(()) = in_flight.next(), if !in_flight.is_empty() => {}
                () = self.changed.notified() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use url::Url;

    const LONGEST: Duration = Duration::from_secs(15);

    fn endpoint() -> SubscriberEndpoint {
        endpoint_failing_since(None)
    }

    fn endpoint_failing_since(failing_since: Option<DateTime<Utc>>) -> SubscriberEndpoint {
        let target =
            DeliveryTarget { url: Url::parse("https://example.com/").unwrap(), secrets: Vec::new(), version: 0 };
        SubscriberEndpoint::new(Uuid::now_v7(), Uuid::now_v7(), target, Instant::now() + LONGEST * 3, failing_since)
    }

    fn job(delivery_id: Uuid) -> DeliveryJob {
        DeliveryJob {
            delivery_id,
            event_id: Uuid::now_v7(),
            event_type: "email.sent".to_owned(),
            attempts: 0,
            body: None,
            trace: None,
            due_at: DateTime::UNIX_EPOCH,
            made_at: DateTime::UNIX_EPOCH,
            replayed: 0,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_serves_each_delivery_once_and_for_a_moment() {
        let endpoint = endpoint();
        let jobs: Vec<DeliveryJob> = (0..4).map(|_| job(Uuid::now_v7())).collect();
        for job in &jobs {
            assert!(endpoint.offer(job.clone(), 4));
        }
        let (first, target) = endpoint.next_job(LONGEST).unwrap();
        assert!(endpoint.take_checked(first.event_id).is_none(), "nothing is known yet");
        assert_eq!(endpoint.events_to_check(first.event_id), [first.event_id], "the first is alone");
        let has_body = HashMap::new();
        endpoint.keep_check(Check { asked_at: Instant::now(), target: Arc::clone(&target), has_body, begun: 0 });
        let events = endpoint.events_to_check(first.event_id);
        assert_eq!(events, [0, 1, 2].map(|n: usize| jobs[n].event_id));
        let has_body = events.into_iter().map(|event| (event, event != jobs[2].event_id)).collect();
        endpoint.keep_check(Check { asked_at: Instant::now(), target, has_body, begun: 0 });
        let is_whole = |number: usize| endpoint.take_checked(jobs[number].event_id).map(|(_, has_body)| has_body);
        assert_eq!(
            (is_whole(1), is_whole(1)),
            (Some(true), None),
            "the same bytes may be posted again: that is read anew"
        );
        assert_eq!((is_whole(2), is_whole(3)), (Some(false), None));
        tokio::time::advance(CHECK_VALID).await;
        assert_eq!(is_whole(0), None, "what was read has become old");
    }

    #[test]
    fn deliveries_beyond_the_limit_are_loaded_later() {
        let endpoint = endpoint();
        let first = endpoint.load_request(4).unwrap();
        endpoint.add_loaded(Vec::new(), first, true);
        assert!(endpoint.load_request(4).is_none());
        for _ in 0..5 {
            assert!(endpoint.offer(job(Uuid::now_v7()), 4));
        }
        assert!(endpoint.load_request(4).is_none(), "full");
        while endpoint.next_job(LONGEST).is_some() {}
        let request = endpoint.load_request(4).unwrap();
        assert_eq!((request.capacity, request.known), (4, 4));
    }

    #[test]
    fn a_delivery_due_during_a_load_is_loaded_again() {
        let endpoint = endpoint();
        let request = endpoint.load_request(1).unwrap();
        endpoint.mark_more_due();
        endpoint.add_loaded(Vec::new(), request, true);
        assert!(endpoint.load_request(1).is_some());
    }

    #[test]
    fn a_delivery_is_queued_once_until_it_is_recorded() {
        let endpoint = endpoint();
        let id = Uuid::now_v7();
        assert!(endpoint.offer(job(id), 4) && endpoint.offer(job(id), 4));
        let request = endpoint.load_request(4).unwrap();
        assert!(endpoint.filter_unknown(vec![(id, DateTime::UNIX_EPOCH)], request).is_empty());
        assert!(endpoint.next_job(LONGEST).is_some() && endpoint.next_job(LONGEST).is_none());
        assert!(endpoint.filter_unknown(vec![(id, DateTime::UNIX_EPOCH)], request).is_empty());
        endpoint.recorded(id);
        assert_eq!(endpoint.filter_unknown(vec![(id, DateTime::UNIX_EPOCH)], request).len(), 1);
    }

    #[test]
    fn no_attempt_begins_that_might_outlast_the_lease() {
        let endpoint = endpoint();
        endpoint.offer(job(Uuid::now_v7()), 4);
        endpoint.renewed(Instant::now() + LONGEST / 2);
        assert!(endpoint.next_job(LONGEST).is_none());
        endpoint.renewed(Instant::now() + LONGEST * 2);
        assert!(endpoint.next_job(LONGEST).is_some());
    }

    #[test]
    fn a_closed_endpoint_leaves_its_queue_to_the_ledger() {
        let endpoint = endpoint();
        endpoint.offer(job(Uuid::now_v7()), 4);
        endpoint.close();
        assert!(endpoint.next_job(LONGEST).is_none());
        assert!(!endpoint.offer(job(Uuid::now_v7()), 4));
        assert!(endpoint.load_request(4).is_none());
    }

    #[test]
    fn a_silent_endpoint_gets_one_request_at_a_time() {
        let endpoint = endpoint();
        assert_eq!(endpoint.concurrency(4), 1, "no attempt yet");
        endpoint.record_presence(false);
        assert_eq!(endpoint.concurrency(4), 4);
        endpoint.record_presence(true);
        assert_eq!(endpoint.concurrency(4), 1);
    }

    #[test]
    fn an_endpoint_that_failed_before_begins_as_a_silent_one() {
        let endpoint = endpoint_failing_since(Some(DateTime::UNIX_EPOCH));
        assert!(endpoint.is_silent());
        endpoint.record_presence(false);
        assert!(!endpoint.is_silent());
    }

    #[test]
    fn a_silent_endpoint_keeps_few_deliveries_in_memory() {
        let endpoint = endpoint();
        let first = endpoint.load_request(64).unwrap();
        endpoint.add_loaded(Vec::new(), first, true);
        let jobs: Vec<Uuid> = (0..50).map(|_| Uuid::now_v7()).collect();
        assert!(jobs.iter().all(|id| endpoint.offer(job(*id), 64)));
        let (attempt, _) = endpoint.next_job(LONGEST).unwrap();
        endpoint.record_presence(true);
        assert!(endpoint.offer(job(Uuid::now_v7()), 64));
        assert!(endpoint.load_request(64).is_none(), "it has enough to try");
        endpoint.recorded(attempt.delivery_id);
        let mut in_memory = Vec::new();
        while let Some((next, _)) = endpoint.next_job(LONGEST) {
            in_memory.push(next.delivery_id);
        }
        assert_eq!(in_memory, jobs[1..=SILENT_AHEAD], "the oldest come first");
        assert_eq!(endpoint.load_request(64).unwrap().capacity, SILENT_AHEAD);
        // Dropped deliveries are loaded again.
        let dropped = vec![(jobs[20], DateTime::UNIX_EPOCH)];
        assert_eq!(endpoint.filter_unknown(dropped, endpoint.load_request(64).unwrap()).len(), 1);
        endpoint.record_presence(false);
        assert_eq!(endpoint.load_request(64).unwrap().capacity, 64);
    }
}
