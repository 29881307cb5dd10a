//! Bursts of clicks: a click is classified with the clicks near it, so a later one can mark an earlier one.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::rules::BURST_WITHIN;

/// A click on one send, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Click {
    /// The event.
    pub(crate) id: Uuid,
    pub(crate) at: DateTime<Utc>,
    /// Which link of the message.
    pub(crate) link: i32,
    /// Whether it is marked as a machine's.
    pub(crate) machine: bool,
}

/// Marks the clicks of one send that have one on another link close by, and answers which marks are new. Their reason is [`super::BURST`].
pub(crate) fn bursts(clicks: &mut [Click]) -> Vec<Uuid> {
    clicks.sort_by_key(|click| (click.at, click.id));
    let mut burst = vec![false; clicks.len()];
    // The nearest click on another link is either the last one before or the first one after: one pass each way.
    find_close(clicks, 0..clicks.len(), &mut burst);
    find_close(clicks, (0..clicks.len()).rev(), &mut burst);
    let mut marked = Vec::new();
    for (click, burst) in clicks.iter_mut().zip(burst) {
        if burst && !click.machine {
            click.machine = true;
            marked.push(click.id);
        }
    }
    marked
}

/// Finds the clicks that come soon after one on another link, in this order of theirs.
fn find_close(clicks: &[Click], order: impl Iterator<Item = usize>, burst: &mut [bool]) {
    let (mut last, mut other): (Option<&Click>, Option<&Click>) = (None, None);
    for at in order {
        let click = &clicks[at];
        if last.is_some_and(|last| last.link != click.link) {
            other = last;
        }
        burst[at] |= other.is_some_and(|other| (other.at - click.at).abs() <= BURST_WITHIN);
        last = Some(click);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeDelta;
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
        assert!(bursts(&mut person).is_empty());
        let mut scanner = vec![click(0, 1), click(2_000, 2), click(4_001, 3)];
        assert_eq!(bursts(&mut scanner).len(), 2, "the third came later");
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
