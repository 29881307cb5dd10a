//! Bursts of clicks: a click is classified with the clicks near it, so a later one can mark an earlier one.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::rules::{BURST, BURST_WITHIN};

/// A click on one send, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Click {
    /// The event.
    pub(crate) id: Uuid,
    /// When.
    pub(crate) at: DateTime<Utc>,
    /// Which link of the message.
    pub(crate) link: i32,
    /// Whether it is marked as a machine's.
    pub(crate) machine: bool,
}

/// Marks the clicks of one send that have one on another link close by, and answers which marks are new, with their reason.
pub(crate) fn bursts(clicks: &mut [Click]) -> (Vec<Uuid>, &'static str) {
    clicks.sort_by_key(|click| (click.at, click.id));
    let within = TimeDelta::from_std(BURST_WITHIN).unwrap_or(TimeDelta::MAX);
    let mut burst = vec![false; clicks.len()];
    // The nearest click on another link is either the last one before or the first one after: one pass each way.
    let mut other: Option<usize> = None;
    for at in 1..clicks.len() {
        if clicks[at].link != clicks[at - 1].link {
            other = Some(at - 1);
        }
        if let Some(other) = other
            && clicks[at].at - clicks[other].at <= within
        {
            burst[at] = true;
        }
    }
    let mut other: Option<usize> = None;
    for at in (0..clicks.len().saturating_sub(1)).rev() {
        if clicks[at].link != clicks[at + 1].link {
            other = Some(at + 1);
        }
        if let Some(other) = other
            && clicks[other].at - clicks[at].at <= within
        {
            burst[at] = true;
        }
    }
    let mut marked = Vec::new();
    for (click, burst) in clicks.iter_mut().zip(burst) {
        if burst && !click.machine {
            click.machine = true;
            marked.push(click.id);
        }
    }
    (marked, BURST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn click(ms: i64, link: i32) -> Click {
        Click {
            id: Uuid::from_u128(ms.unsigned_abs().into()),
            at: DateTime::UNIX_EPOCH + TimeDelta::milliseconds(ms),
            link,
            machine: false,
        }
    }

    #[test]
    fn one_link_twice_is_a_person_and_two_links_at_once_are_not() {
        let mut person = vec![click(0, 1), click(500, 1), click(9_000, 2)];
        assert!(bursts(&mut person).0.is_empty());
        let mut scanner = vec![click(0, 1), click(2_000, 2), click(4_001, 3)];
        assert_eq!(bursts(&mut scanner).0.len(), 2, "the third came later");
    }

    proptest! {
        #[test]
        fn marks_are_those_of_the_definition(told in proptest::collection::vec((0_i64..12_000, 0_i32..3), 0..12)) {
            let mut clicks: Vec<Click> =
                told.iter().enumerate().map(|(at, (ms, link))| Click { id: Uuid::from_u128(at as u128), ..click(*ms, *link) }).collect();
            let all = clicks.clone();
            bursts(&mut clicks);
            for click in clicks {
                let defined = all.iter().any(|other| other.link != click.link && (other.at - click.at).abs() <= TimeDelta::seconds(2));
                prop_assert_eq!(click.machine, defined);
            }
        }
    }
}
