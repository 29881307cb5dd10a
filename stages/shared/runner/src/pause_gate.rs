//! The pause gate: the operator's pause switches, and the work that is still in progress.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use runtime::PauseSwitches;

/// The pause switches, and the work in progress of this process's stages. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PauseGate {
    pub(crate) switches: PauseSwitches,
    in_progress: Arc<Mutex<BTreeMap<&'static str, u32>>>,
}

impl PauseGate {
    /// A gate by these switches, with nothing in progress.
    #[must_use]
    pub fn new(switches: PauseSwitches) -> Self {
        Self { switches, in_progress: Arc::default() }
    }

    /// True while a stage must start no work.
    #[must_use]
    pub fn is_paused(&self, stage: &str) -> bool {
        self.switches.is_paused(stage)
    }

    /// True while the ledger is a restored one, or may be: mail under new ids must not be written.
    #[must_use]
    pub fn is_ledger_held(&self) -> bool {
        self.switches.is_ledger_held()
    }

    /// Waits until the stage may start work.
    pub async fn until_running(&self, stage: &str) {
        self.switches.until_running(stage).await;
    }

    /// Counts work as in progress until the answer is dropped. `None`: the stage is paused, and the work must not start. It counts first and
    /// checks the switch then, so that a stage that reports "paused, nothing in progress" has started nothing since.
    #[must_use]
    pub fn start(&self, stage: &'static str, pieces: usize) -> Option<WorkInProgress> {
        let pieces = u32::try_from(pieces).unwrap_or(u32::MAX);
        let work = WorkInProgress { pause_gate: self.clone(), stage, pieces };
        self.change(stage, |count| count.saturating_add(pieces));
        (!self.is_paused(stage)).then_some(work)
    }

    /// The pieces of work that a stage has in progress.
    #[must_use]
    pub fn in_progress(&self, stage: &str) -> u32 {
        self.in_progress.lock().unwrap_or_else(PoisonError::into_inner).get(stage).copied().unwrap_or(0)
    }

    fn change(&self, stage: &'static str, to: impl FnOnce(u32) -> u32) {
        let mut in_progress = self.in_progress.lock().unwrap_or_else(PoisonError::into_inner);
        let count = in_progress.entry(stage).or_default();
        *count = to(*count);
    }
}

/// Work in progress, until it is dropped.
#[derive(Debug)]
pub struct WorkInProgress {
    pause_gate: PauseGate,
    stage: &'static str,
    pieces: u32,
}

impl Drop for WorkInProgress {
    fn drop(&mut self) {
        let pieces = self.pieces;
        self.pause_gate.change(self.stage, |count| count.saturating_sub(pieces));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_in_progress_until_it_is_dropped() {
        let pause_gate = PauseGate::new(PauseSwitches::released());
        let (one, two) = (pause_gate.start("delivery", 3), pause_gate.start("delivery", 2));
        assert_eq!((pause_gate.in_progress("delivery"), pause_gate.in_progress("audience")), (5, 0));
        drop(one);
        assert_eq!(pause_gate.in_progress("delivery"), 2);
        drop(two);
        assert_eq!(pause_gate.in_progress("delivery"), 0);
    }
}
