//! All paths of a process: who may start now, and what is remembered. Pure, and bounded.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use schemas::receiver::Receiver;
use uuid::Uuid;

use super::rate::{Held, Rate, Turn};

/// The most paths remembered; beyond it, idle ones that were used longest ago are forgotten.
pub const MAX_PATHS: usize = 10_000;
/// A path that is held and was not used for so long is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60 * 60);
/// One with a ceiling and nothing else, after so long.
const IDLE: Duration = Duration::from_secs(60);

/// From one sending domain to one receiver.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Path {
    /// Whose.
    pub tenant: Uuid,
    /// The domain mail is sent from.
    pub sending_domain: Arc<str>,
    /// Who takes it.
    pub receiver: Receiver,
}

impl Path {
    /// The path of a mail from a sending domain to an address of this domain.
    #[must_use]
    pub fn new(tenant: Uuid, sending_domain: &str, recipient_domain: &str) -> Self {
        Self { tenant, sending_domain: Arc::from(sending_domain), receiver: Receiver::of(recipient_domain) }
    }
}

/// Whether a transaction may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// It may, and counts as in flight until [`Paths::finish`].
    Go,
    /// As many as allowed are in flight to the receiver.
    Busy,
    /// The path is held to a pace, and this mail has its slot after so long.
    Later(Duration),
    /// The same, and all slots within this time are given away.
    Far(Duration),
    /// The receiver has taken nothing for so long that what was tried before is given up.
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
struct Entry {
    rate: Rate,
    in_flight: usize,
    used_at: Instant,
    /// Others have not been told of its state.
    is_news: bool,
}

impl Entry {
    fn is_forgettable(&self, now: Instant) -> bool {
        let idle = now.saturating_duration_since(self.used_at);
        let is_old = match self.rate.held() {
            Some(held) => idle.min(now.saturating_duration_since(held.cut_at)) > FORGOTTEN_AFTER,
            None => idle > IDLE,
        };
        self.in_flight == 0 && (is_old || self.rate.is_blank())
    }
}

/// What is told to other processes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct News {
    pub path: Path,
    /// `None`: free again.
    pub held: Option<Held>,
}

/// How the paths to one family are, for the metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Level {
    /// Paths held to a pace.
    pub held: usize,
    /// Mails a second over all of them.
    pub limit: f64,
    /// Mails with a slot before them.
    pub waiting: f64,
}

/// The paths.
#[derive(Debug)]
pub(super) struct Paths {
    limit: usize,
    ceiling: Option<f64>,
    patience: Duration,
    paths: HashMap<Path, Entry>,
    in_flight: HashMap<Arc<str>, usize>,
}

impl Paths {
    /// At most `limit` (at least 1) transactions at once to one receiver, and `ceiling` mails a second on one path. What a receiver
    /// that takes nothing for `patience` has refused before is given up.
    pub fn new(limit: usize, ceiling: Option<f64>, patience: Duration) -> Self {
        Self { limit: limit.max(1), ceiling, patience, paths: HashMap::new(), in_flight: HashMap::new() }
    }

    /// Whether a path is held to a pace.
    pub fn is_held(&self, path: &Path) -> bool {
        self.ceiling.is_some() || self.paths.get(path).is_some_and(|entry| entry.rate.limit().is_some())
    }

    /// Asks to start a transaction. `was_tried`: it was refused before.
    pub fn start(&mut self, path: &Path, turn: Turn, was_tried: bool, now: Instant) -> Start {
        let in_flight = self.in_flight.get(&path.receiver.name).copied().unwrap_or(0);
        if in_flight >= self.limit {
            return Start::Busy;
        }
        let patience = self.patience;
        let entry = self.entry(path, now);
        entry.used_at = now;
        if !entry.rate.admit(turn, now) {
            if turn != Turn::Prompt && was_tried && entry.rate.barren(now) >= patience {
                return Start::RetryDeadlinePassed;
            }
            return entry.rate.slot(now).map_or_else(Start::Far, Start::Later);
        }
        entry.in_flight += 1;
        *self.in_flight.entry(path.receiver.name.clone()).or_default() += 1;
        Start::Go
    }

    /// A transaction that had started has ended. Whether the path was cut.
    pub fn finish(&mut self, path: &Path, feedback: Feedback, began: Instant, now: Instant) -> bool {
        if let Some(in_flight) = self.in_flight.get_mut(&path.receiver.name) {
            *in_flight = in_flight.saturating_sub(1);
            if *in_flight == 0 {
                self.in_flight.remove(&path.receiver.name);
            }
        }
        let Some(entry) = self.paths.get_mut(path) else { return false };
        entry.in_flight = entry.in_flight.saturating_sub(1);
        let before = entry.rate.limit();
        let is_cut = match feedback {
            Feedback::Silent => false,
            Feedback::Good => entry.rate.heard(false, began, entry.in_flight, now),
            Feedback::Deferred => entry.rate.heard(true, began, entry.in_flight, now),
        };
        entry.is_news |= is_cut || before != entry.rate.limit();
        if entry.in_flight == 0 && entry.rate.is_blank() && !entry.is_news {
            self.paths.remove(path);
        }
        is_cut
    }

    /// What changed since this was asked last, at most `most`.
    pub fn news(&mut self, most: usize) -> Vec<News> {
        let changed = self.paths.iter_mut().filter(|(_, entry)| entry.is_news).take(most);
        changed
            .map(|(path, entry)| {
                entry.is_news = false;
                News { path: path.clone(), held: entry.rate.held() }
            })
            .collect()
    }

    /// News that could not be told.
    pub fn untold(&mut self, news: &[News]) {
        for News { path, .. } in news {
            if let Some(entry) = self.paths.get_mut(path) {
                entry.is_news = true;
            }
        }
    }

    /// Takes over what another process found out.
    pub fn adopt(&mut self, path: &Path, told: Held, now: Instant) {
        self.entry(path, now).rate.adopt(told, now);
    }

    /// Forgets what is idle and free.
    pub fn tidy(&mut self, now: Instant) {
        self.paths.retain(|_, entry| entry.is_news || !entry.is_forgettable(now));
    }

    /// How the paths are, by family; families without any that is held are left out.
    pub fn levels(&self, now: Instant) -> HashMap<&'static str, Level> {
        let mut levels: HashMap<&'static str, Level> = HashMap::new();
        for (path, entry) in &self.paths {
            if let Some(held) = entry.rate.held() {
                let level = levels.entry(path.receiver.family).or_default();
                level.held += 1;
                level.limit += held.limit;
                level.waiting += entry.rate.waiting(now);
            }
        }
        levels
    }

    /// How many paths are remembered.
    #[cfg(test)]
    pub fn remembered(&self) -> usize {
        self.paths.len()
    }

    fn entry(&mut self, path: &Path, now: Instant) -> &mut Entry {
        if self.paths.len() >= MAX_PATHS && !self.paths.contains_key(path) {
            self.make_room(now);
        }
        let ceiling = self.ceiling;
        self.paths.entry(path.clone()).or_insert_with(|| Entry {
            rate: Rate::new(ceiling, now),
            in_flight: 0,
            used_at: now,
            is_news: false,
        })
    }

    /// Drops what is forgettable, and if that is not enough the tenth of the idle ones that was used longest ago.
    fn make_room(&mut self, now: Instant) {
        self.paths.retain(|_, entry| !entry.is_forgettable(now));
        if self.paths.len() < MAX_PATHS * 9 / 10 {
            return;
        }
        let mut uses: Vec<Instant> =
            self.paths.values().filter(|entry| entry.in_flight == 0).map(|entry| entry.used_at).collect();
        uses.sort_unstable();
        if let Some(&cut) = uses.get(MAX_PATHS / 10).or(uses.last()) {
            self.paths.retain(|_, entry| entry.in_flight > 0 || entry.used_at > cut);
        }
    }
}

#[cfg(test)]
mod tests;
