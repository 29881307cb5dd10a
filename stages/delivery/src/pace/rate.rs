//! How fast one path may go: deferrals halve it, good answers raise it. Pure.
//!
//! A path is *free* until its receiver defers. Answers are judged in windows: when more than a tenth of at least ten are deferrals,
//! the path is cut to half of what flowed, at once, and answers of transactions that began before tell nothing more. A window
//! without any deferral raises it: twice as fast up to where half of what flowed when the trouble began is reached, from there by
//! a constant step. A path that has come up to [`FREE`] is free again.
//!
//! What may not go now is given a time: slots follow each other at the path's pace, a few seconds' mail together, because coming
//! back costs a passage through the pipeline.

use std::time::{Duration, Instant};

/// Mails a second below which no path falls: somebody has to ask whether it is over.
pub const FLOOR: f64 = 0.1;
/// Mails a second at which a path is free again.
pub const FREE: f64 = 500.0;
/// The least a clean window adds, in mails a second.
const LEAST_STEP: f64 = 1.0;
/// One deferral in so many answers is nothing to slow down for; fewer answers than this count as so many.
const TOLERATED_IN: u32 = 10;
/// A window is at least so long …
const WINDOW: Duration = Duration::from_secs(1);
/// … and holds so many answers, …
const WINDOW_ANSWERS: u32 = 5;
/// … unless it is so long.
const WINDOW_LONGEST: Duration = Duration::from_secs(60);
/// Mail of so long may go at once after a rest.
const BURST: Duration = Duration::from_secs(4);
/// Mail of so long comes back together.
const CHUNK: Duration = Duration::from_secs(2);
/// Prompt mail may always borrow this much of what is to come.
const LEAST_DEBT: f64 = 5.0;
/// The furthest slot: as far ahead as the trouble is old, between these.
const HORIZON: (Duration, Duration) = (Duration::from_secs(120), Duration::from_secs(30 * 60));

/// What asks to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Bulk mail that is tried for the first time: after those that were put off.
    New,
    /// Bulk mail that was deferred or put off and is due.
    Again,
    /// Mail somebody waits for: it may borrow of what is to come.
    Prompt,
}

/// The window answers are judged in.
#[derive(Debug, Clone, Copy)]
struct Window {
    since: Instant,
    answers: u32,
    deferred: u32,
}

impl Window {
    fn new(since: Instant) -> Self {
        Self { since, answers: 0, deferred: 0 }
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    fn is_full(&self, now: Instant) -> bool {
        let age = self.age(now);
        (age >= WINDOW && self.answers >= WINDOW_ANSWERS) || age >= WINDOW_LONGEST
    }

    fn is_bad(&self) -> bool {
        self.deferred * TOLERATED_IN > self.answers.max(TOLERATED_IN)
    }
}

/// A path that is held to a pace, as processes tell each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Held {
    /// Mails a second.
    pub limit: f64,
    /// Below this it is raised by doubling.
    pub threshold: f64,
    /// When it was cut last.
    pub cut_at: Instant,
    /// Since when it is not free.
    pub since: Instant,
    /// When the receiver last took something, if it has since.
    pub good_at: Option<Instant>,
}

/// The pace of one path.
#[derive(Debug, Clone)]
pub(super) struct Rate {
    ceiling: Option<f64>,
    held: Option<Held>,
    /// The last cut that is known, also of a path that is free again.
    known_cut: Option<Instant>,
    /// No window was clean since the last cut.
    is_falling: bool,
    tokens: f64,
    filled_at: Instant,
    window: Window,
    /// Answers a second in the window before.
    throughput: f64,
    /// The slot given out now, and for how many more.
    slot: Instant,
    slot_left: u32,
}

impl Rate {
    /// A free path, or with a ceiling one that is held to it.
    pub fn new(ceiling: Option<f64>, now: Instant) -> Self {
        let ceiling = ceiling.map(|ceiling| ceiling.max(FLOOR));
        Self {
            ceiling,
            held: None,
            known_cut: None,
            is_falling: false,
            tokens: ceiling.map_or(0.0, burst),
            filled_at: now,
            window: Window::new(now),
            throughput: 0.0,
            slot: now,
            slot_left: 0,
        }
    }

    /// Mails a second; `None`: as fast as it goes.
    pub fn limit(&self) -> Option<f64> {
        self.held.map(|held| held.limit).or(self.ceiling)
    }

    /// The state to tell others, unless it is free.
    pub fn held(&self) -> Option<Held> {
        self.held
    }

    /// Whether nothing would be lost by forgetting it.
    pub fn is_blank(&self) -> bool {
        self.held.is_none() && self.ceiling.is_none() && self.window.deferred == 0
    }

    /// Whether a mail may start.
    pub fn admit(&mut self, turn: Turn, now: Instant) -> bool {
        let Some(limit) = self.limit() else { return true };
        self.fill(limit, now);
        let least = match turn {
            Turn::New if self.slot > now => return false,
            Turn::New | Turn::Again => 1.0,
            Turn::Prompt => 1.0 - burst(limit).max(LEAST_DEBT),
        };
        if self.tokens < least {
            return false;
        }
        self.tokens -= 1.0;
        true
    }

    /// When a mail that may not start now is to come back. `Err`: all slots are given away; the furthest wait.
    pub fn slot(&mut self, now: Instant) -> Result<Duration, Duration> {
        let Some(limit) = self.limit() else { return Ok(Duration::ZERO) };
        let trouble = self.held.map_or(HORIZON.0, |held| now.saturating_duration_since(held.since));
        let horizon = trouble.clamp(HORIZON.0, HORIZON.1);
        if self.slot_left == 0 || self.slot <= now {
            let chunk = (limit * CHUNK.as_secs_f64()).floor().clamp(1.0, f64::from(u16::MAX));
            let next = self.slot.max(now) + Duration::from_secs_f64(chunk / limit);
            if next.saturating_duration_since(now) > horizon {
                return Err(horizon);
            }
            self.slot = next;
            self.slot_left = chunk as u32;
        }
        self.slot_left -= 1;
        Ok(self.slot.saturating_duration_since(now))
    }

    /// An answer to a transaction that began at `began`; `in_flight` others have none yet. Whether the path was cut.
    pub fn heard(&mut self, is_deferral: bool, began: Instant, in_flight: usize, now: Instant) -> bool {
        if let Some(held) = &mut self.held {
            if !is_deferral {
                held.good_at = Some(now);
            }
            if began < held.cut_at {
                return false;
            }
        }
        self.window.answers = self.window.answers.saturating_add(1);
        self.window.deferred += u32::from(is_deferral);
        if is_deferral && self.window.is_bad() {
            self.cut(in_flight, now);
            return true;
        }
        if self.window.is_full(now) {
            self.throughput = f64::from(self.window.answers) / self.window.age(now).as_secs_f64();
            if self.window.deferred == 0 {
                self.raise(now);
            }
            self.window = Window::new(now);
        }
        false
    }

    /// Half of what flowed, or of what might have.
    fn cut(&mut self, in_flight: usize, now: Instant) {
        let under_way = f64::from(self.window.answers) + f64::from(u32::try_from(in_flight).unwrap_or(u32::MAX));
        let flowed = self.throughput.max(under_way / self.window.age(now).max(WINDOW).as_secs_f64());
        let before = self.limit().map_or(flowed, |limit| limit.min(flowed));
        let limit = self.within(before / 2.0);
        let threshold = match self.held {
            Some(held) if self.is_falling => held.threshold,
            _ => limit,
        };
        let (since, good_at) = self.held.map_or((now, None), |held| (held.since, held.good_at));
        self.is_falling = true;
        self.window = Window::new(now);
        self.set(Held { limit, threshold, cut_at: now, since, good_at }, now);
        self.tokens = self.tokens.min(0.0);
    }

    fn raise(&mut self, now: Instant) {
        self.is_falling = false;
        let Some(held) = self.held else { return };
        let doubled = (held.limit * 2.0).min(held.threshold);
        let stepped = held.limit + (held.threshold / 10.0).max(LEAST_STEP);
        let limit = if held.limit < held.threshold { doubled } else { stepped };
        if limit >= self.ceiling.unwrap_or(FREE) {
            self.held = None;
            self.slot = now;
            return;
        }
        self.set(Held { limit: self.within(limit), ..held }, now);
    }

    /// What another process has found out, unless it is known already.
    pub fn adopt(&mut self, told: Held, now: Instant) {
        /// Clocks of two processes meet within this.
        const SAME: Duration = Duration::from_secs(1);
        if self.known_cut.is_some_and(|known| told.cut_at <= known + SAME) {
            return;
        }
        let limit = self.within(self.held.map_or(told.limit, |held| held.limit.min(told.limit)));
        let since = self.held.map_or(told.since, |held| held.since.min(told.since));
        let good_at = self.held.map_or(told.good_at, |held| held.good_at.max(told.good_at));
        self.set(Held { limit, since, good_at, ..told }, now);
        self.tokens = self.tokens.min(burst(limit));
    }

    /// For how long the receiver has taken nothing at all.
    pub fn barren(&self, now: Instant) -> Duration {
        let since = |held: Held| held.good_at.map_or(held.since, |good| good.max(held.since));
        self.held.map_or(Duration::ZERO, |held| now.saturating_duration_since(since(held)))
    }

    /// How many mails have a slot before them.
    pub fn waiting(&self, now: Instant) -> f64 {
        self.limit().map_or(0.0, |limit| limit * self.slot.saturating_duration_since(now).as_secs_f64())
    }

    /// A new pace; the slots that were given out move with it.
    fn set(&mut self, held: Held, now: Instant) {
        if let Some(before) = self.limit() {
            self.fill(before, now);
            let ahead = self.slot.saturating_duration_since(now).as_secs_f64() * before / held.limit;
            self.slot = now + Duration::from_secs_f64(ahead.min(HORIZON.1.as_secs_f64()));
        } else {
            self.filled_at = now;
            self.slot = now;
            self.tokens = 0.0;
        }
        self.slot_left = 0;
        self.known_cut = Some(held.cut_at);
        self.held = Some(held);
    }

    fn within(&self, limit: f64) -> f64 {
        limit.max(FLOOR).min(self.ceiling.unwrap_or(f64::INFINITY))
    }

    fn fill(&mut self, limit: f64, now: Instant) {
        let since = now.saturating_duration_since(self.filled_at).as_secs_f64();
        self.tokens = (self.tokens + since * limit).min(burst(limit));
        self.filled_at = self.filled_at.max(now);
    }
}

fn burst(limit: f64) -> f64 {
    (limit * BURST.as_secs_f64()).max(1.0)
}

#[cfg(test)]
mod tests;
