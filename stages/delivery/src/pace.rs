//! Pacing per recipient domain: how many transactions at once, and a growing pause for a domain that says "slow down".
//!
//! [`Pace`] is the pure core; [`DomainPaces`] shares it between tasks. Memory is bounded: a domain is remembered only
//! while something is in flight to it or it has recently throttled us, and at most [`MAX_PAUSED`] of the latter.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

/// The most throttling domains remembered; beyond it, those with the earliest end of pause are forgotten.
pub const MAX_PAUSED: usize = 10_000;
/// The first pause.
const FIRST_PAUSE: Duration = Duration::from_secs(15);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(15 * 60);
/// After so long without throttling a domain starts afresh.
const FORGIVEN_AFTER: Duration = Duration::from_secs(60 * 60);

/// Whether a transaction to a domain may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// It may, and counts as in flight until [`Pace::finish`].
    Go,
    /// As many as allowed are in flight.
    Busy,
    /// The domain asked us to slow down; not before this time.
    Paused(Instant),
}

/// How a transaction to a domain went, as far as pacing cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feedback {
    /// The domain answered normally, yes or no.
    Fine,
    /// The domain deferred us as a whole.
    Throttled,
}

#[derive(Debug, Default)]
struct Entry {
    in_flight: usize,
    strikes: u32,
    paused_until: Option<Instant>,
    last_strike: Option<Instant>,
}

/// The pure core.
#[derive(Debug)]
pub struct Pace {
    limit: usize,
    domains: HashMap<String, Entry>,
    paused: usize,
}

impl Pace {
    /// At most `limit` (at least 1) transactions at once to one domain.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), domains: HashMap::new(), paused: 0 }
    }

    /// Asks to start a transaction.
    pub fn start(&mut self, domain: &str, now: Instant) -> Start {
        let Some(entry) = self.domains.get_mut(domain) else {
            self.domains.insert(domain.to_owned(), Entry { in_flight: 1, ..Entry::default() });
            return Start::Go;
        };
        match entry.paused_until {
            Some(until) if until > now => Start::Paused(until),
            _ if entry.in_flight >= self.limit => Start::Busy,
            _ => {
                entry.in_flight += 1;
                Start::Go
            }
        }
    }

    /// A transaction that had started has ended. Strikes double the pause from 15 s to 15 min; transactions that were in
    /// flight when a pause began do not lengthen it.
    pub fn finish(&mut self, domain: &str, feedback: Feedback, now: Instant) {
        let Some(entry) = self.domains.get_mut(domain) else { return };
        entry.in_flight = entry.in_flight.saturating_sub(1);
        let is_paused = entry.paused_until.is_some_and(|until| until > now);
        if feedback == Feedback::Throttled && !is_paused {
            if entry.last_strike.is_some_and(|last| now.duration_since(last) > FORGIVEN_AFTER) {
                entry.strikes = 0;
            }
            let pause = FIRST_PAUSE.saturating_mul(1 << entry.strikes.min(16)).min(LONGEST_PAUSE);
            if entry.last_strike.is_none() {
                self.paused += 1;
            }
            entry.strikes += 1;
            entry.last_strike = Some(now);
            entry.paused_until = Some(now + pause);
            if self.paused > MAX_PAUSED {
                self.forget_some(now);
            }
        } else if entry.in_flight == 0 && entry.last_strike.is_none_or(|last| now.duration_since(last) > FORGIVEN_AFTER)
        {
            self.paused -= usize::from(entry.last_strike.is_some());
            self.domains.remove(domain);
        }
    }

    /// Drops what is forgiven and idle, and if that is not enough the tenth of the idle ones whose pause ends first.
    fn forget_some(&mut self, now: Instant) {
        let forgiven = |entry: &Entry| entry.last_strike.is_none_or(|last| now.duration_since(last) > FORGIVEN_AFTER);
        self.domains.retain(|_, entry| entry.in_flight > 0 || !forgiven(entry));
        let mut ends: Vec<Instant> =
            self.domains.values().filter(|entry| entry.in_flight == 0).filter_map(|entry| entry.paused_until).collect();
        if ends.len() > MAX_PAUSED * 9 / 10 {
            ends.sort_unstable();
            let cut = ends[MAX_PAUSED / 10];
            self.domains.retain(|_, entry| entry.in_flight > 0 || entry.paused_until.is_none_or(|until| until > cut));
        }
        self.paused = self.domains.values().filter(|entry| entry.last_strike.is_some()).count();
    }

    /// How many domains are remembered.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.domains.len()
    }
}

/// [`Pace`], shared.
#[derive(Debug, Clone)]
pub struct DomainPaces {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pace: Mutex<Pace>,
    freed: Notify,
}

/// The domain asked us to slow down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the recipient's domain asked for a slower pace")]
pub struct Paused {
    /// For how much longer.
    pub wait: Duration,
}

impl DomainPaces {
    /// At most `limit` transactions at once to one domain.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { shared: Arc::new(Shared { pace: Mutex::new(Pace::new(limit)), freed: Notify::new() }) }
    }

    /// Waits until a transaction to the domain may start.
    ///
    /// # Errors
    /// [`Paused`] at once when the domain is paused: the caller defers the send instead of holding its place.
    pub async fn acquire(&self, domain: &str) -> Result<PacePermit, Paused> {
        loop {
            // Registered before asking, so that a transaction ending in between is not missed.
            let freed = self.shared.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            let now = Instant::now();
            let answer = self.shared.lock().start(domain, now);
            match answer {
                Start::Go => {
                    return Ok(PacePermit {
                        shared: self.shared.clone(),
                        domain: domain.to_owned(),
                        feedback: Feedback::Fine,
                    });
                }
                Start::Paused(until) => return Err(Paused { wait: until.saturating_duration_since(now) }),
                Start::Busy => freed.await,
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Pace> {
        // The lock is held for map operations only; a panic between them leaves counts that are off by one at worst.
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A transaction in flight to a domain. Ends when dropped.
#[derive(Debug)]
pub struct PacePermit {
    shared: Arc<Shared>,
    domain: String,
    feedback: Feedback,
}

impl PacePermit {
    /// The domain deferred us as a whole.
    pub fn throttled(&mut self) {
        self.feedback = Feedback::Throttled;
    }
}

impl Drop for PacePermit {
    fn drop(&mut self) {
        self.shared.lock().finish(&self.domain, self.feedback, Instant::now());
        self.shared.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_more_than_the_limit_start_at_once_to_one_domain() {
        let (mut pace, now) = (Pace::new(2), Instant::now());
        let answers: Vec<_> = (0..3).map(|_| pace.start("a.example", now)).collect();
        assert_eq!(answers, [Start::Go, Start::Go, Start::Busy]);
        assert_eq!(pace.start("b.example", now), Start::Go);
        pace.finish("a.example", Feedback::Fine, now);
        assert_eq!(pace.start("a.example", now), Start::Go);
    }

    #[test]
    fn a_throttling_domain_is_paused_twice_as_long_each_time_up_to_a_quarter_of_an_hour() {
        let (mut pace, mut now) = (Pace::new(5), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert_eq!(pace.start("a.example", now), Start::Go);
            pace.finish("a.example", Feedback::Throttled, now);
            let Start::Paused(until) = pace.start("a.example", now) else { panic!("not paused") };
            pauses.push((until - now).as_secs());
            now = until;
        }
        assert_eq!(pauses, [15, 30, 60, 120, 240, 480, 900, 900, 900]);
    }

    #[test]
    fn transactions_in_flight_when_a_pause_begins_do_not_lengthen_it() {
        let (mut pace, now) = (Pace::new(5), Instant::now());
        for _ in 0..3 {
            pace.start("a.example", now);
        }
        for _ in 0..3 {
            pace.finish("a.example", Feedback::Throttled, now);
        }
        assert_eq!(pace.start("a.example", now), Start::Paused(now + FIRST_PAUSE));
    }

    #[test]
    fn a_domain_that_behaves_is_forgiven_and_forgotten() {
        let (mut pace, now) = (Pace::new(5), Instant::now());
        pace.start("a.example", now);
        pace.finish("a.example", Feedback::Throttled, now);
        let later = now + FORGIVEN_AFTER + Duration::from_secs(1);
        assert_eq!(pace.start("a.example", later), Start::Go);
        pace.finish("a.example", Feedback::Fine, later);
        assert_eq!(pace.remembered(), 0);
    }

    #[test]
    fn however_many_domains_throttle_memory_stays_bounded() {
        let (mut pace, now) = (Pace::new(5), Instant::now());
        for number in 0..3 * MAX_PAUSED {
            let domain = format!("d{number}.example");
            pace.start(&domain, now);
            pace.finish(&domain, Feedback::Throttled, now + Duration::from_millis(number as u64));
        }
        assert!(pace.remembered() <= MAX_PAUSED + 1, "{}", pace.remembered());
    }

    #[tokio::test]
    async fn a_waiting_task_starts_when_another_ends() {
        let paces = DomainPaces::new(1);
        let first = paces.acquire("a.example").await.unwrap();
        let waiting = tokio::spawn({
            let paces = paces.clone();
            async move { paces.acquire("a.example").await.map(drop) }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        assert_eq!(waiting.await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn a_paused_domain_is_refused_at_once() {
        let paces = DomainPaces::new(1);
        paces.acquire("a.example").await.unwrap().throttled();
        assert!(paces.acquire("a.example").await.is_err());
        assert!(paces.acquire("b.example").await.is_ok());
    }

    proptest! {
        #[test]
        fn what_ends_is_forgotten_and_the_limit_always_holds(steps in proptest::collection::vec((0usize..4, any::<bool>()), 0..200)) {
            let (mut pace, now, mut open) = (Pace::new(3), Instant::now(), [0usize; 4]);
            for (domain, start) in steps {
                let name = format!("d{domain}.example");
                if start && pace.start(&name, now) == Start::Go {
                    open[domain] += 1;
                } else if !start && open[domain] > 0 {
                    pace.finish(&name, Feedback::Fine, now);
                    open[domain] -= 1;
                }
                prop_assert!(open.iter().all(|&count| count <= 3));
                prop_assert_eq!(pace.remembered(), open.iter().filter(|&&count| count > 0).count());
            }
        }
    }
}
