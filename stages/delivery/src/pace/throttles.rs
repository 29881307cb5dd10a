//! The throttles of a process, one per throttle key: which mail may start now. Pure, and bounded in memory.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use schemas::receiver::Receiver;
use uuid::Uuid;

use super::rate::{PacePriority, Rate, ReducedRate};

/// The most throttle keys in memory. Beyond it, the idle ones that were used longest ago are evicted.
pub const MAX_THROTTLES: usize = 10_000;
/// A throttle key with a reduced rate is evicted after this time without use.
const REDUCED_LIFE: Duration = Duration::from_secs(60 * 60);
/// A throttle key without a reduced rate is evicted after this time without use.
const UNLIMITED_LIFE: Duration = Duration::from_secs(60);

/// What mail is throttled by: the tenant, the sending domain, and the receiver.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ThrottleKey {
    pub tenant: Uuid,
    pub sending_domain: Arc<str>,
    pub receiver: Receiver,
}

impl ThrottleKey {
    /// The throttle key of mail from a sending domain to addresses of a recipient domain.
    pub fn new(tenant: Uuid, sending_domain: &str, recipient_domain: &str) -> Self {
        Self { tenant, sending_domain: Arc::from(sending_domain), receiver: Receiver::of(recipient_domain) }
    }
}

/// Why a mail may not go now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PaceRefusal {
    /// The mail has a slot after this time.
    Throttled(Duration),
    /// All slots within this time are taken.
    QueueFull(Duration),
    /// The receiver has accepted nothing until the mail's retry deadline.
    RetryDeadlinePassed,
}

/// What a transaction's end says about the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feedback {
    /// Nothing: no answer, or one about something else.
    Silent,
    /// It answered normally, yes or no.
    Good,
    /// "Later."
    Deferred,
}

#[derive(Debug)]
struct ThrottleEntry {
    rate: Rate,
    in_flight: usize,
    used_at: Instant,
    /// Its state has not been published to other processes.
    is_changed: bool,
}

impl ThrottleEntry {
    fn is_evictable(&self, now: Instant) -> bool {
        let idle = now.saturating_duration_since(self.used_at);
        let is_old = match self.rate.reduced() {
            Some(reduced) => idle.min(now.saturating_duration_since(reduced.cut_at)) > REDUCED_LIFE,
            None => idle > UNLIMITED_LIFE,
        };
        self.in_flight == 0 && (is_old || self.rate.is_default())
    }
}

/// A change of a rate, published to other processes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ThrottleChange {
    pub key: ThrottleKey,
    /// `None`: the rate is no longer reduced.
    pub reduced: Option<ReducedRate>,
}

/// The throttles of one receiver family, for the metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ThrottleLevel {
    /// Throttles reduced to a pace.
    pub reduced: usize,
    /// The sum of their rates, in mails a second.
    pub limit: f64,
    /// Mails that wait for a slot.
    pub waiting: f64,
}

/// The throttles, by throttle key.
#[derive(Debug)]
pub(super) struct Throttles {
    limit: usize,
    ceiling: Option<f64>,
    retry_deadline: Duration,
    throttles: HashMap<ThrottleKey, ThrottleEntry>,
    /// By connection and receiver. A tenant's connection may be slow, and its mail counts while it waits for it: were it counted with
    /// others' mail, it would take up what these may send to the receiver.
    in_flight: HashMap<(Option<Uuid>, Arc<str>), usize>,
}

impl Throttles {
    /// Prompt mail aside, at most `limit` (at least 1) transactions at once over one connection to one receiver, and `ceiling` mails a
    /// second for one throttle key. Mail that was tried before expires when its receiver has accepted nothing for `retry_deadline`.
    pub fn new(limit: usize, ceiling: Option<f64>, retry_deadline: Duration) -> Self {
        Self { limit: limit.max(1), ceiling, retry_deadline, throttles: HashMap::new(), in_flight: HashMap::new() }
    }

    /// True if a throttle key has a rate limit.
    pub fn is_limited(&self, key: &ThrottleKey) -> bool {
        self.ceiling.is_some() || self.throttles.get(key).is_some_and(|entry| entry.rate.limit().is_some())
    }

    /// Starts a transaction if it may start now: it counts as in flight until [`Self::finish`]. `false`: as many as allowed are in flight
    /// to the receiver. `over`: the tenant's connection that carries it; `None`: the platform's relay. `was_tried`: the mail was deferred
    /// before.
    ///
    /// # Errors
    /// [`PaceRefusal`]: the rate is limited.
    pub fn start(
        &mut self,
        key: &ThrottleKey,
        over: Option<Uuid>,
        turn: PacePriority,
        was_tried: bool,
        now: Instant,
    ) -> Result<bool, PaceRefusal> {
        let counted = (over, key.receiver.name.clone());
        let in_flight = self.in_flight.get(&counted).copied().unwrap_or(0);
        // Prompt mail has few connections of its own, and must not wait for campaigns that wait for theirs.
        if turn != PacePriority::Prompt && in_flight >= self.limit {
            return Ok(false);
        }
        let retry_deadline = self.retry_deadline;
        let entry = self.entry(key, now);
        entry.used_at = now;
        if !entry.rate.admit(turn, now) {
            if turn != PacePriority::Prompt && was_tried && entry.rate.refused_for(now) >= retry_deadline {
                return Err(PaceRefusal::RetryDeadlinePassed);
            }
            return Err(entry.rate.slot(now).map_or_else(PaceRefusal::QueueFull, PaceRefusal::Throttled));
        }
        entry.in_flight += 1;
        *self.in_flight.entry(counted).or_default() += 1;
        Ok(true)
    }

    /// Ends a transaction. True if its answer cut the rate.
    pub fn finish(
        &mut self,
        key: &ThrottleKey,
        over: Option<Uuid>,
        feedback: Feedback,
        began: Instant,
        now: Instant,
    ) -> bool {
        let counted = (over, key.receiver.name.clone());
        if let Some(in_flight) = self.in_flight.get_mut(&counted) {
            *in_flight = in_flight.saturating_sub(1);
            if *in_flight == 0 {
                self.in_flight.remove(&counted);
            }
        }
        let Some(entry) = self.throttles.get_mut(key) else { return false };
        entry.in_flight = entry.in_flight.saturating_sub(1);
        let before = entry.rate.limit();
        let is_cut = match feedback {
            Feedback::Silent => false,
            Feedback::Good => entry.rate.record_answer(false, began, entry.in_flight, now),
            Feedback::Deferred => entry.rate.record_answer(true, began, entry.in_flight, now),
        };
        entry.is_changed |= is_cut || before != entry.rate.limit();
        if entry.in_flight == 0 && entry.rate.is_default() && !entry.is_changed {
            self.throttles.remove(key);
        }
        is_cut
    }

    /// Takes the changes since the last call, at most `most`.
    pub fn take_changes(&mut self, most: usize) -> Vec<ThrottleChange> {
        let changed = self.throttles.iter_mut().filter(|(_, entry)| entry.is_changed).take(most);
        changed
            .map(|(key, entry)| {
                entry.is_changed = false;
                ThrottleChange { key: key.clone(), reduced: entry.rate.reduced() }
            })
            .collect()
    }

    /// Puts changes back that could not be published.
    pub fn return_changes(&mut self, changes: &[ThrottleChange]) {
        for ThrottleChange { key, .. } in changes {
            if let Some(entry) = self.throttles.get_mut(key) {
                entry.is_changed = true;
            }
        }
    }

    /// Adopts a reduced rate that another process found.
    pub fn adopt(&mut self, key: &ThrottleKey, reported: ReducedRate, now: Instant) {
        self.entry(key, now).rate.adopt(reported, now);
    }

    /// Removes idle throttle keys.
    pub fn evict_idle(&mut self, now: Instant) {
        self.throttles.retain(|_, entry| entry.is_changed || !entry.is_evictable(now));
    }

    /// The levels by family, without families whose rates are not reduced.
    pub fn levels(&self, now: Instant) -> HashMap<&'static str, ThrottleLevel> {
        let mut levels: HashMap<&'static str, ThrottleLevel> = HashMap::new();
        for (key, entry) in &self.throttles {
            if let Some(reduced) = entry.rate.reduced() {
                let level = levels.entry(key.receiver.family).or_default();
                level.reduced += 1;
                level.limit += reduced.limit;
                level.waiting += entry.rate.waiting(now);
            }
        }
        levels
    }

    /// The number of throttle keys in memory.
    #[cfg(test)]
    pub fn tracked(&self) -> usize {
        self.throttles.len()
    }

    fn entry(&mut self, key: &ThrottleKey, now: Instant) -> &mut ThrottleEntry {
        if self.throttles.len() >= MAX_THROTTLES && !self.throttles.contains_key(key) {
            self.evict_oldest(now);
        }
        let ceiling = self.ceiling;
        self.throttles.entry(key.clone()).or_insert_with(|| ThrottleEntry {
            rate: Rate::new(ceiling, now),
            in_flight: 0,
            used_at: now,
            is_changed: false,
        })
    }

    /// Removes evictable throttle keys, and if that is not enough the tenth of the idle ones that was used longest ago.
    fn evict_oldest(&mut self, now: Instant) {
        self.throttles.retain(|_, entry| !entry.is_evictable(now));
        if self.throttles.len() < MAX_THROTTLES * 9 / 10 {
            return;
        }
        let mut uses: Vec<Instant> =
            self.throttles.values().filter(|entry| entry.in_flight == 0).map(|entry| entry.used_at).collect();
        uses.sort_unstable();
        if let Some(&cut) = uses.get(MAX_THROTTLES / 10).or(uses.last()) {
            self.throttles.retain(|_, entry| entry.in_flight > 0 || entry.used_at > cut);
        }
    }
}

#[cfg(test)]
mod tests;
