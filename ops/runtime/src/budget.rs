//! One budget for everything that reads bytes a stranger sent: CSV, JSON values, templates, HTML, attachments, inbound mail,
//! provider events, DNS answers.
//!
//! A reader takes a [`Budget`] made from its [`Limits`] and charges it where the work is done: each loop a step, each buffer its
//! bytes, each level of nesting its depth. When a bound is passed the reader stops with [`Spent`], and nothing is half done.
//! What was used is kept ([`Used`]), so that a test can show that the cost grows with the input and not with its square.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// The bounds of one reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes taken in.
    pub input_bytes: usize,
    /// Most bytes of memory at one time for what the reader builds: copies, unpacked data, output.
    pub held_bytes: usize,
    /// Deepest nesting.
    pub depth: u32,
    /// Most steps. A step is one bounded piece of work: a byte or token looked at, a value compared, an entry visited.
    pub steps: u64,
    /// Longest duration, by the wall clock.
    pub time: Duration,
}

/// The bound that was passed. All but [`Spent::Time`] are a fault of the input and stay one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Spent {
    /// More bytes than [`Limits::input_bytes`].
    #[error("the input is too long")]
    Input,
    /// More bytes than [`Limits::held_bytes`].
    #[error("the input unpacks to too much")]
    Held,
    /// Deeper than [`Limits::depth`].
    #[error("the input is nested too deeply")]
    Depth,
    /// More steps than [`Limits::steps`].
    #[error("the input takes too many steps to read")]
    Steps,
    /// Longer than [`Limits::time`].
    #[error("reading the input took too long")]
    Time,
}

impl Spent {
    /// True if the same input may be read another time: only a busy machine explains it.
    #[must_use]
    pub fn is_transient(self) -> bool {
        self == Self::Time
    }
}

/// What a reading used so far, or its peak where something is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    /// Bytes taken in.
    pub input_bytes: usize,
    /// Most bytes of memory at one time.
    pub held_bytes: usize,
    /// Deepest nesting.
    pub depth: u32,
    /// Steps.
    pub steps: u64,
}

/// Steps between two looks at the clock.
const STEPS_PER_CLOCK: u64 = 1_024;

/// The budget of one reading. Shared by reference by all that take part in it, on one thread.
#[derive(Debug)]
pub struct Budget {
    limits: Limits,
    started: Instant,
    input: Cell<usize>,
    held: Cell<usize>,
    held_peak: Cell<usize>,
    depth: Cell<u32>,
    depth_peak: Cell<u32>,
    steps: Cell<u64>,
    clock_at: Cell<u64>,
}

impl Budget {
    /// A full budget. Its time runs from now on.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            started: Instant::now(),
            input: Cell::new(0),
            held: Cell::new(0),
            held_peak: Cell::new(0),
            depth: Cell::new(0),
            depth_peak: Cell::new(0),
            steps: Cell::new(0),
            clock_at: Cell::new(STEPS_PER_CLOCK),
        }
    }

    /// Takes in `bytes` of input.
    pub fn take_input(&self, bytes: usize) -> Result<(), Spent> {
        self.input.set(self.input.get().saturating_add(bytes));
        if self.input.get() > self.limits.input_bytes { Err(Spent::Input) } else { Ok(()) }
    }

    /// Charges `steps`. Looks at the clock every so often, so charge small pieces of work, before doing them.
    pub fn take_steps(&self, steps: u64) -> Result<(), Spent> {
        let taken = self.steps.get().saturating_add(steps);
        self.steps.set(taken);
        if taken > self.limits.steps {
            return Err(Spent::Steps);
        }
        if taken >= self.clock_at.get() {
            self.clock_at.set(taken.saturating_add(STEPS_PER_CLOCK));
            return self.check_time();
        }
        Ok(())
    }

    /// Looks at the clock now.
    pub fn check_time(&self) -> Result<(), Spent> {
        if self.started.elapsed() > self.limits.time { Err(Spent::Time) } else { Ok(()) }
    }

    /// Charges `bytes` of memory before they are allocated.
    pub fn hold(&self, bytes: usize) -> Result<(), Spent> {
        let held = self.held.get().saturating_add(bytes);
        self.held.set(held);
        self.held_peak.set(self.held_peak.get().max(held));
        if held > self.limits.held_bytes { Err(Spent::Held) } else { Ok(()) }
    }

    /// Releases `bytes` of memory.
    pub fn release(&self, bytes: usize) {
        self.held.set(self.held.get().saturating_sub(bytes));
    }

    /// Bytes of memory that are left.
    #[must_use]
    pub fn held_left(&self) -> usize {
        self.limits.held_bytes.saturating_sub(self.held.get())
    }

    /// Goes a level deeper, until the answer is dropped.
    pub fn enter(&self) -> Result<Level<'_>, Spent> {
        if self.depth.get() >= self.limits.depth {
            return Err(Spent::Depth);
        }
        self.depth.set(self.depth.get() + 1);
        self.depth_peak.set(self.depth_peak.get().max(self.depth.get()));
        Ok(Level { budget: self })
    }

    /// What was used so far.
    #[must_use]
    pub fn used(&self) -> Used {
        Used {
            input_bytes: self.input.get(),
            held_bytes: self.held_peak.get(),
            depth: self.depth_peak.get(),
            steps: self.steps.get(),
        }
    }
}

/// A level of nesting. Dropping it leaves the level.
#[derive(Debug)]
pub struct Level<'a> {
    budget: &'a Budget,
}

impl Drop for Level<'_> {
    fn drop(&mut self) {
        self.budget.depth.set(self.budget.depth.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Limits =
        Limits { input_bytes: 10, held_bytes: 10, depth: 2, steps: 5_000, time: Duration::from_secs(3_600) };

    #[test]
    fn each_bound_has_its_own_error() {
        let budget = Budget::new(SMALL);
        assert_eq!(budget.take_input(10), Ok(()));
        assert_eq!(budget.take_input(1), Err(Spent::Input));
        assert_eq!(budget.hold(11), Err(Spent::Held));
        assert_eq!(budget.take_steps(5_000), Ok(()));
        assert_eq!(budget.take_steps(1), Err(Spent::Steps));
        let late = Budget::new(Limits { time: Duration::ZERO, ..SMALL });
        std::thread::yield_now();
        assert_eq!(late.take_steps(STEPS_PER_CLOCK), Err(Spent::Time));
        assert!(Spent::Time.is_transient() && !Spent::Steps.is_transient());
    }

    #[test]
    fn released_memory_can_be_used_again() {
        let budget = Budget::new(SMALL);
        assert_eq!(budget.hold(8), Ok(()));
        budget.release(8);
        assert_eq!(budget.hold(9), Ok(()));
        assert_eq!((budget.used().held_bytes, budget.held_left()), (9, 1));
    }

    #[test]
    fn a_level_is_left_when_it_is_dropped() {
        let budget = Budget::new(SMALL);
        let outer = budget.enter().expect("first level");
        {
            let _inner = budget.enter().expect("second level");
            assert_eq!(budget.enter().err(), Some(Spent::Depth));
        }
        assert!(budget.enter().is_ok());
        drop(outer);
        assert_eq!(budget.used().depth, 2);
    }
}
