//! What an operator holds back, as the loop sees it, and what is in hand meanwhile.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use runtime::PauseSwitches;

/// The levers, and what the stages of this process have in hand. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Hold {
    levers: PauseSwitches,
    in_hand: Arc<Mutex<BTreeMap<&'static str, u32>>>,
}

impl Hold {
    pub(crate) fn new(levers: PauseSwitches) -> Self {
        Self { levers, in_hand: Arc::default() }
    }

    /// Whether a stage is to start nothing.
    #[must_use]
    pub fn is_paused(&self, stage: &str) -> bool {
        self.levers.is_paused(stage)
    }

    /// Returns when the stage may start something.
    pub async fn until_running(&self, stage: &str) {
        self.levers.until_running(stage).await;
    }

    /// Counts work as in hand until the answer is dropped. `None`: the stage is paused, and the work is not to be started. Counted
    /// first and asked then, so that a stage that says "paused, nothing in hand" has started nothing since.
    #[must_use]
    pub fn start(&self, stage: &'static str, pieces: usize) -> Option<InHand> {
        let pieces = u32::try_from(pieces).unwrap_or(u32::MAX);
        let work = InHand { hold: self.clone(), stage, pieces };
        self.change(stage, |count| count.saturating_add(pieces));
        (!self.is_paused(stage)).then_some(work)
    }

    /// What a stage has in hand.
    #[must_use]
    pub fn in_hand(&self, stage: &str) -> u32 {
        self.in_hand.lock().unwrap_or_else(PoisonError::into_inner).get(stage).copied().unwrap_or(0)
    }

    fn change(&self, stage: &'static str, to: impl FnOnce(u32) -> u32) {
        let mut in_hand = self.in_hand.lock().unwrap_or_else(PoisonError::into_inner);
        let count = in_hand.entry(stage).or_default();
        *count = to(*count);
    }
}

/// Work in hand, until dropped.
#[derive(Debug)]
pub struct InHand {
    hold: Hold,
    stage: &'static str,
    pieces: u32,
}

impl Drop for InHand {
    fn drop(&mut self) {
        let pieces = self.pieces;
        self.hold.change(self.stage, |count| count.saturating_sub(pieces));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_in_hand_until_it_is_dropped() {
        let hold = Hold::new(PauseSwitches::released());
        let (one, two) = (hold.start("delivery", 3), hold.start("delivery", 2));
        assert_eq!((hold.in_hand("delivery"), hold.in_hand("audience")), (5, 0));
        drop(one);
        assert_eq!(hold.in_hand("delivery"), 2);
        drop(two);
        assert_eq!(hold.in_hand("delivery"), 0);
    }
}
