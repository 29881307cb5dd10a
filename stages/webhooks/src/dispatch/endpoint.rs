//! One subscription while this process delivers to it: a bounded queue, and a task of its own that never has more than a few
//! requests under way. Endpoints share nothing but the process's sockets: one that is slow delays itself.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::stream::{FuturesUnordered, StreamExt};
use runtime::trace::TraceContext;
use tokio::{sync::Notify, time::Instant};
use uuid::Uuid;

use super::{Shared, attempt::Target};

/// Deliveries in memory for an endpoint where nobody is: what waits for it stands in the ledger, and costs nobody anything there.
const SILENT_AHEAD: usize = 4;

/// Whether anybody is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// Not heard of yet.
    Unknown,
    Answers,
    /// The last attempt met nobody.
    Silent,
}

/// A delivery to try.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub delivery_id: Uuid,
    pub event_id: Uuid,
    pub event_type: String,
    /// Attempts before this one.
    pub attempts: u16,
    /// `None`: whom it is about was erased.
    pub body: Option<Bytes>,
    /// The trace of the mail it tells of.
    pub trace: Option<TraceContext>,
    /// Its place in the queue.
    pub due_at: DateTime<Utc>,
    /// When the delivery was made; `None` for one that was asked for again.
    pub made_at: Option<DateTime<Utc>>,
}

/// A subscription that this process holds the lease on.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub tenant_id: Uuid,
    pub id: Uuid,
    state: Mutex<State>,
    bell: Notify,
}

#[derive(Debug)]
struct State {
    target: Arc<Target>,
    queue: VecDeque<Job>,
    /// What is in the queue, under way, or not recorded yet: not to be loaded again.
    held: HashSet<Uuid>,
    /// The ledger may have more that is due.
    has_more: bool,
    /// How often something was left to the ledger: tells whoever looked before.
    left: u64,
    lease_until: Instant,
    is_open: bool,
    failing_since: Option<DateTime<Utc>>,
    presence: Presence,
    active_at: Instant,
}

impl State {
    /// How many deliveries it may have in memory.
    fn room(&self, capacity: usize) -> usize {
        if self.presence == Presence::Silent { SILENT_AHEAD.min(capacity) } else { capacity }
    }

    /// Something is left to the ledger.
    fn leave(&mut self) {
        self.has_more = true;
        self.left += 1;
    }
}

/// What an endpoint wants of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Want {
    /// How many it takes.
    pub room: usize,
    /// How many it has: they come first in the ledger, too.
    pub held: usize,
    left: u64,
}

impl Endpoint {
    pub fn new(
        tenant_id: Uuid,
        id: Uuid,
        target: Target,
        lease_until: Instant,
        failing_since: Option<DateTime<Utc>>,
    ) -> Self {
        let state = State {
            target: Arc::new(target),
            queue: VecDeque::new(),
            held: HashSet::new(),
            has_more: true,
            left: 0,
            lease_until,
            is_open: true,
            failing_since,
            presence: Presence::Unknown,
            active_at: Instant::now(),
        };
        Self { tenant_id, id, state: Mutex::new(state), bell: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a job straight from the fan-out. What finds no room stands in the ledger. `false`: nothing is taken here any more.
    pub fn offer(&self, job: Job, capacity: usize) -> bool {
        let mut state = self.state();
        if !state.is_open {
            return false;
        }
        if state.queue.len() >= state.room(capacity) {
            state.leave();
        } else if state.held.insert(job.delivery_id) {
            state.queue.push_back(job);
        }
        drop(state);
        self.bell.notify_one();
        true
    }

    /// Says that the ledger may have more.
    pub fn look_again(&self) {
        self.state().leave();
    }

    /// What it wants of the ledger, if it wants anything: a few large helpings rather than many small ones.
    pub fn wants(&self, capacity: usize) -> Option<Want> {
        let state = self.state();
        let room = state.room(capacity);
        let is_hungry = state.is_open && state.has_more && state.queue.len() <= room / 4;
        is_hungry.then(|| Want {
            room: room.saturating_sub(state.queue.len()),
            held: state.held.len(),
            left: state.left,
        })
    }

    /// Those of these deliveries that it does not have yet, as many as it wants.
    pub fn lacks(&self, due: Vec<(Uuid, DateTime<Utc>)>, want: Want) -> Vec<(Uuid, DateTime<Utc>)> {
        let state = self.state();
        due.into_iter().filter(|(id, _)| !state.held.contains(id)).take(want.room).collect()
    }

    /// Takes what was loaded. `is_all`: the ledger had no more.
    pub fn load(&self, jobs: Vec<Job>, want: Want, is_all: bool) {
        let mut state = self.state();
        if is_all && state.left == want.left {
            state.has_more = false;
        }
        for job in jobs {
            if state.is_open && state.held.insert(job.delivery_id) {
                state.queue.push_back(job);
            }
        }
        drop(state);
        self.bell.notify_one();
    }

    /// The next job, if one may be begun: nothing is begun that might outlast the lease.
    fn next(&self, longest: Duration) -> Option<(Job, Arc<Target>)> {
        let mut state = self.state();
        let now = Instant::now();
        if !state.is_open || state.lease_until < now + longest {
            return None;
        }
        let job = state.queue.pop_front()?;
        state.active_at = now;
        Some((job, Arc::clone(&state.target)))
    }

    /// How many requests may be under way: one until somebody has answered, so that sockets are not spent on the silent.
    fn width(&self, most: usize) -> usize {
        if self.state().presence == Presence::Answers { most.max(1) } else { 1 }
    }

    /// Whether the last attempt met nobody.
    pub fn is_silent(&self) -> bool {
        self.state().presence == Presence::Silent
    }

    /// What an attempt met. The silent keep but the beginning of their queue.
    pub fn answered(&self, is_silent: bool) {
        let mut state = self.state();
        state.presence = if is_silent { Presence::Silent } else { Presence::Answers };
        let kept = state.room(usize::MAX).min(state.queue.len());
        let State { queue, held, .. } = &mut *state;
        let shed: Vec<Job> = queue.drain(kept..).collect();
        for job in &shed {
            held.remove(&job.delivery_id);
        }
        if !shed.is_empty() {
            state.leave();
        }
    }

    /// It is in the ledger what became of it.
    pub fn recorded(&self, delivery: Uuid) {
        self.state().held.remove(&delivery);
    }

    pub fn failing_since(&self) -> Option<DateTime<Utc>> {
        self.state().failing_since
    }

    pub fn fails_since(&self, since: Option<DateTime<Utc>>) {
        self.state().failing_since = since;
    }

    pub fn renewed(&self, lease_until: Instant) {
        self.state().lease_until = lease_until;
        self.bell.notify_one();
    }

    /// Whether it delivers to what a subscription is like that has this mark.
    pub fn is_as(&self, mark: u64) -> bool {
        self.state().target.mark == mark
    }

    /// Delivers to this from now on.
    pub fn retarget(&self, target: Target) -> Arc<Target> {
        let mut state = self.state();
        if *state.target != target {
            state.target = Arc::new(target);
        }
        Arc::clone(&state.target)
    }

    /// Leaves a delivery that was begun and not posted to the ledger.
    pub fn give_back(&self, delivery: Uuid) {
        let mut state = self.state();
        state.held.remove(&delivery);
        state.leave();
    }

    /// Begins nothing more; what waits is left to the ledger.
    pub fn close(&self) {
        let mut state = self.state();
        state.is_open = false;
        let State { queue, held, .. } = &mut *state;
        for job in queue.drain(..) {
            held.remove(&job.delivery_id);
        }
        drop(state);
        self.bell.notify_one();
    }

    /// Whether nothing has come for so long that somebody else may as well have it.
    pub fn is_idle(&self, after: Duration) -> bool {
        let state = self.state();
        state.is_open && state.held.is_empty() && !state.has_more && state.active_at.elapsed() >= after
    }

    fn is_open(&self) -> bool {
        self.state().is_open
    }

    /// Delivers until it is closed, and finishes what is under way.
    pub async fn run(self: Arc<Self>, shared: Arc<Shared>) {
        let mut under_way = FuturesUnordered::new();
        loop {
            while under_way.len() < self.width(shared.per_endpoint) {
                let Some((job, target)) = self.next(shared.longest()) else { break };
                under_way.push(Box::pin(shared.try_one(&self, job, target)));
            }
            if self.wants(shared.capacity()).is_some() {
                shared.wake();
            }
            if under_way.is_empty() && !self.is_open() {
                return;
            }
            tokio::select! {
                Some(()) = under_way.next(), if !under_way.is_empty() => {}
                () = self.bell.notified() => {}
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use url::Url;

    const LONGEST: Duration = Duration::from_secs(15);

    fn endpoint() -> Endpoint {
        let target = Target { url: Url::parse("https://example.com/").unwrap(), secrets: Vec::new(), mark: 0 };
        Endpoint::new(Uuid::now_v7(), Uuid::now_v7(), target, Instant::now() + LONGEST * 3, None)
    }

    fn job(delivery_id: Uuid) -> Job {
        Job {
            delivery_id,
            event_id: Uuid::now_v7(),
            event_type: "email.sent".to_owned(),
            attempts: 0,
            body: None,
            trace: None,
            due_at: DateTime::UNIX_EPOCH,
            made_at: None,
        }
    }

    #[test]
    fn what_finds_no_room_is_left_to_the_ledger_and_wanted_later() {
        let endpoint = endpoint();
        let first = endpoint.wants(4).unwrap();
        endpoint.load(Vec::new(), first, true);
        assert!(endpoint.wants(4).is_none());
        for _ in 0..5 {
            assert!(endpoint.offer(job(Uuid::now_v7()), 4));
        }
        assert!(endpoint.wants(4).is_none(), "full");
        while endpoint.next(LONGEST).is_some() {}
        let want = endpoint.wants(4).unwrap();
        assert_eq!((want.room, want.held), (4, 4));
    }

    #[test]
    fn what_came_while_the_ledger_was_asked_is_asked_for_again() {
        let endpoint = endpoint();
        let want = endpoint.wants(1).unwrap();
        endpoint.look_again();
        endpoint.load(Vec::new(), want, true);
        assert!(endpoint.wants(1).is_some());
    }

    #[test]
    fn a_delivery_is_had_once_until_it_is_recorded() {
        let endpoint = endpoint();
        let id = Uuid::now_v7();
        assert!(endpoint.offer(job(id), 4) && endpoint.offer(job(id), 4));
        let want = endpoint.wants(4).unwrap();
        assert!(endpoint.lacks(vec![(id, DateTime::UNIX_EPOCH)], want).is_empty());
        assert!(endpoint.next(LONGEST).is_some() && endpoint.next(LONGEST).is_none());
        assert!(endpoint.lacks(vec![(id, DateTime::UNIX_EPOCH)], want).is_empty());
        endpoint.recorded(id);
        assert_eq!(endpoint.lacks(vec![(id, DateTime::UNIX_EPOCH)], want).len(), 1);
    }

    #[test]
    fn nothing_is_begun_that_might_outlast_the_lease() {
        let endpoint = endpoint();
        endpoint.offer(job(Uuid::now_v7()), 4);
        endpoint.renewed(Instant::now() + LONGEST / 2);
        assert!(endpoint.next(LONGEST).is_none());
        endpoint.renewed(Instant::now() + LONGEST * 2);
        assert!(endpoint.next(LONGEST).is_some());
    }

    #[test]
    fn a_closed_endpoint_takes_nothing_and_leaves_what_it_had() {
        let endpoint = endpoint();
        endpoint.offer(job(Uuid::now_v7()), 4);
        endpoint.close();
        assert!(endpoint.next(LONGEST).is_none());
        assert!(!endpoint.offer(job(Uuid::now_v7()), 4));
        assert!(endpoint.wants(4).is_none());
    }

    #[test]
    fn nobody_there_is_asked_by_one_request_at_a_time() {
        let endpoint = endpoint();
        assert_eq!(endpoint.width(4), 1, "not heard of yet");
        endpoint.answered(false);
        assert_eq!(endpoint.width(4), 4);
        endpoint.answered(true);
        assert_eq!(endpoint.width(4), 1);
    }

    #[test]
    fn of_what_waits_for_nobody_little_is_in_memory() {
        let endpoint = endpoint();
        let first = endpoint.wants(64).unwrap();
        endpoint.load(Vec::new(), first, true);
        let jobs: Vec<Uuid> = (0..50).map(|_| Uuid::now_v7()).collect();
        assert!(jobs.iter().all(|id| endpoint.offer(job(*id), 64)));
        let (tried, _) = endpoint.next(LONGEST).unwrap();
        endpoint.answered(true);
        assert!(endpoint.offer(job(Uuid::now_v7()), 64));
        assert!(endpoint.wants(64).is_none(), "it has enough to find out with");
        endpoint.recorded(tried.delivery_id);
        let mut in_memory = Vec::new();
        while let Some((next, _)) = endpoint.next(LONGEST) {
            in_memory.push(next.delivery_id);
        }
        assert_eq!(in_memory, jobs[1..=SILENT_AHEAD], "the oldest come first");
        assert_eq!(endpoint.wants(64).unwrap().room, SILENT_AHEAD);
        // What was shed is not had any more, and is loaded again.
        let shed = vec![(jobs[20], DateTime::UNIX_EPOCH)];
        assert_eq!(endpoint.lacks(shed, endpoint.wants(64).unwrap()).len(), 1);
        endpoint.answered(false);
        assert_eq!(endpoint.wants(64).unwrap().room, 64);
    }
}
