//! The pause before something is tried again.

use std::time::Duration;

/// Pauses that double with each failure in a row. For a technical fault that is expected to go away; when a mail, a webhook or a step is
/// tried again is a schedule of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// From `first` to `longest`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// The pause after so many failures in a row, from 1.
    #[must_use]
    pub fn pause(self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        let seconds = [0, 1, 2, 3, 4, 5, 6, 7, 8, 32, 33, u32::MAX].map(|failures| backoff.pause(failures).as_secs());
        assert_eq!(seconds, [1, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60]);
    }
}
