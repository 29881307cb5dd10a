//! The rate of one throttle key: deferrals halve it, good answers raise it. Pure.
//!
//! The rate is *unlimited* until the receiver defers. Answers are counted in windows: when more than a tenth of at least ten are
//! deferrals, the rate is cut at once to half of the recent throughput, and answers of transactions that began before the cut no
//! longer count. A window without any deferral raises the rate: it doubles up to the threshold (half of the throughput when the
//! deferrals began), and grows by a constant step from there. A rate that reaches [`FREE`] is unlimited again.
//!
//! A mail that may not go now gets a slot. Slots follow each other at the rate, a few seconds' mail together, because each
//! return costs a pass through the pipeline.

use std::time::{Duration, Instant};

/// The lowest rate in mails a second: some mail must try whether the receiver accepts again.
pub const FLOOR: f64 = 0.1;
/// The rate in mails a second from which a throttle key is unlimited again.
pub const FREE: f64 = 500.0;
/// The least a clean window adds, in mails a second.
const LEAST_STEP: f64 = 1.0;
/// One deferral in this many answers is tolerated; fewer answers count as this many.
const TOLERATED_IN: u32 = 10;
/// A window lasts at least this long …
const WINDOW: Duration = Duration::from_secs(1);
/// … and contains at least this many answers, …
const WINDOW_ANSWERS: u32 = 5;
/// … unless it lasts this long.
const WINDOW_LONGEST: Duration = Duration::from_secs(60);
/// After idle time, this much time's mail may go at once.
const BURST: Duration = Duration::from_secs(4);
/// The mail of this much time shares a slot.
const CHUNK: Duration = Duration::from_secs(2);
/// Prompt mail may always borrow this many tokens.
const LEAST_DEBT: f64 = 5.0;
/// The furthest slot lies as far ahead as the rate has been reduced, within these bounds.
const HORIZON: (Duration, Duration) = (Duration::from_secs(120), Duration::from_secs(30 * 60));

/// The priority of a mail that asks to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacePriority {
    /// Bulk mail that is tried for the first time, after deferred mail.
    New,
    /// Bulk mail that was deferred and is due.
    Retry,
    /// Priority mail: it may borrow tokens.
    Prompt,
}

/// The window in which answers are counted.
#[derive(Debug, Clone, Copy)]
struct AnswerWindow {
    since: Instant,
    answers: u32,
    deferred: u32,
}

impl AnswerWindow {
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

/// A reduced rate, as processes share it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReducedRate {
    /// Mails a second.
    pub limit: f64,
    /// Below this rate it is raised by doubling.
    pub threshold: f64,
    /// When the rate was cut last.
    pub cut_at: Instant,
    /// Since when the rate is reduced.
    pub since: Instant,
    /// When the receiver last accepted a mail, if it has since the first cut.
    pub good_at: Option<Instant>,
}

/// The rate of one throttle key.
#[derive(Debug, Clone)]
pub(super) struct Rate {
    ceiling: Option<f64>,
    reduced: Option<ReducedRate>,
    /// The last known cut, also after the rate became unlimited again.
    known_cut: Option<Instant>,
    /// True until the first window without deferrals after a cut.
    is_falling: bool,
    tokens: f64,
    filled_at: Instant,
    window: AnswerWindow,
    /// Answers a second in the window before.
    throughput: f64,
    /// The current slot, and how many more mails it takes.
    slot: Instant,
    slot_left: u32,
}

impl Rate {
    /// An unlimited rate, or one limited to the ceiling.
    pub fn new(ceiling: Option<f64>, now: Instant) -> Self {
        let ceiling = ceiling.map(|ceiling| ceiling.max(FLOOR));
        Self {
            ceiling,
            reduced: None,
            known_cut: None,
            is_falling: false,
            tokens: ceiling.map_or(0.0, burst),
            filled_at: now,
            window: AnswerWindow::new(now),
            throughput: 0.0,
            slot: now,
            slot_left: 0,
        }
    }

    /// The limit in mails a second; `None`: unlimited.
    pub fn limit(&self) -> Option<f64> {
        self.reduced.map(|reduced| reduced.limit).or(self.ceiling)
    }

    /// The reduced rate to share, if it is reduced.
    pub fn reduced(&self) -> Option<ReducedRate> {
        self.reduced
    }

    /// True if the state is that of a new rate.
    pub fn is_default(&self) -> bool {
        self.reduced.is_none() && self.ceiling.is_none() && self.window.deferred == 0
    }

    /// True if a mail may start now.
    pub fn admit(&mut self, turn: PacePriority, now: Instant) -> bool {
        let Some(limit) = self.limit() else { return true };
        self.fill(limit, now);
        let least = match turn {
            PacePriority::New if self.slot > now => return false,
            PacePriority::New | PacePriority::Retry => 1.0,
            PacePriority::Prompt => 1.0 - burst(limit).max(LEAST_DEBT),
        };
        if self.tokens < least {
            return false;
        }
        self.tokens -= 1.0;
        true
    }

    /// The wait until the mail's slot. `Err`: all slots are taken; the wait until the furthest one.
    pub fn slot(&mut self, now: Instant) -> Result<Duration, Duration> {
        let Some(limit) = self.limit() else { return Ok(Duration::ZERO) };
        let trouble = self.reduced.map_or(HORIZON.0, |reduced| now.saturating_duration_since(reduced.since));
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

    /// Records an answer to a transaction that began at `began` while `in_flight` others have none yet. True if the rate was cut.
    pub fn record_answer(&mut self, is_deferral: bool, began: Instant, in_flight: usize, now: Instant) -> bool {
        if let Some(reduced) = &mut self.reduced {
            if !is_deferral {
                reduced.good_at = Some(now);
            }
            if began < reduced.cut_at {
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
            self.window = AnswerWindow::new(now);
        }
        false
    }

    /// Cuts the rate to half of the recent throughput.
    fn cut(&mut self, in_flight: usize, now: Instant) {
        let under_way = f64::from(self.window.answers) + f64::from(u32::try_from(in_flight).unwrap_or(u32::MAX));
        let flowed = self.throughput.max(under_way / self.window.age(now).max(WINDOW).as_secs_f64());
        let before = self.limit().map_or(flowed, |limit| limit.min(flowed));
        let limit = self.within(before / 2.0);
        let threshold = match self.reduced {
            Some(reduced) if self.is_falling => reduced.threshold,
            _ => limit,
        };
        let (since, good_at) = self.reduced.map_or((now, None), |reduced| (reduced.since, reduced.good_at));
        self.is_falling = true;
        self.window = AnswerWindow::new(now);
        self.set(ReducedRate { limit, threshold, cut_at: now, since, good_at }, now);
        self.tokens = self.tokens.min(0.0);
    }

    fn raise(&mut self, now: Instant) {
        self.is_falling = false;
        let Some(reduced) = self.reduced else { return };
        let doubled = (reduced.limit * 2.0).min(reduced.threshold);
        let stepped = reduced.limit + (reduced.threshold / 10.0).max(LEAST_STEP);
        let limit = if reduced.limit < reduced.threshold { doubled } else { stepped };
        if limit >= self.ceiling.unwrap_or(FREE) {
            self.reduced = None;
            self.slot = now;
            return;
        }
        self.set(ReducedRate { limit: self.within(limit), ..reduced }, now);
    }

    /// Adopts a cut that another process found, unless it is known already.
    pub fn adopt(&mut self, reported: ReducedRate, now: Instant) {
        /// The largest difference of two processes' clocks.
        const SAME: Duration = Duration::from_secs(1);
        if self.known_cut.is_some_and(|known| reported.cut_at <= known + SAME) {
            return;
        }
        let limit = self.within(self.reduced.map_or(reported.limit, |reduced| reduced.limit.min(reported.limit)));
        let since = self.reduced.map_or(reported.since, |reduced| reduced.since.min(reported.since));
        let good_at = self.reduced.map_or(reported.good_at, |reduced| reduced.good_at.max(reported.good_at));
        self.set(ReducedRate { limit, since, good_at, ..reported }, now);
        self.tokens = self.tokens.min(burst(limit));
    }

    /// How long the receiver has accepted nothing.
    pub fn refused_for(&self, now: Instant) -> Duration {
        let since = |reduced: ReducedRate| reduced.good_at.map_or(reduced.since, |good| good.max(reduced.since));
        self.reduced.map_or(Duration::ZERO, |reduced| now.saturating_duration_since(since(reduced)))
    }

    /// How many mails wait for a slot.
    pub fn waiting(&self, now: Instant) -> f64 {
        self.limit().map_or(0.0, |limit| limit * self.slot.saturating_duration_since(now).as_secs_f64())
    }

    /// Sets a new rate. Slots that were given out keep their order.
    fn set(&mut self, reduced: ReducedRate, now: Instant) {
        if let Some(before) = self.limit() {
            self.fill(before, now);
            let ahead = self.slot.saturating_duration_since(now).as_secs_f64() * before / reduced.limit;
            self.slot = now + Duration::from_secs_f64(ahead.min(HORIZON.1.as_secs_f64()));
        } else {
            self.filled_at = now;
            self.slot = now;
            self.tokens = 0.0;
        }
        self.slot_left = 0;
        self.known_cut = Some(reduced.cut_at);
        self.reduced = Some(reduced);
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
