//! What becomes of a due enrollment: one pure decision.

use schemas::{ExitReason, SequenceStatus};

use crate::{
    due::{Due, Person},
    exit::exit_reason,
    sequence::{Sequence, Step},
};

/// The way on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way<'a> {
    /// Its step is taken.
    Act(&'a Step),
    /// It ends early.
    Exit(ExitReason),
    /// Every step is taken.
    Complete,
    /// The sequence is paused: it leaves the due ones and keeps its time.
    Park,
    /// Its tenant is suspended or paused: it comes again.
    Rest,
}

/// Decides. Leaving comes before pausing comes before acting: who has left is not held back by a pause.
pub(crate) fn way<'a>(due: &Due, sequence: &'a Sequence, person: Option<&Person>, steps_per_day: i16) -> Way<'a> {
    let Some(person) = person else { return Way::Exit(ExitReason::ContactArchived) };
    if sequence.status == SequenceStatus::Archived {
        return Way::Exit(ExitReason::SequenceArchived);
    }
    if let Some(reason) = exit_reason(&person.standing, &sequence.rules(due.opted_out_by_step)) {
        return Way::Exit(reason);
    }
    if person.replied {
        return Way::Exit(ExitReason::Replied);
    }
    if sequence.status != SequenceStatus::Active {
        return Way::Park;
    }
    if !sequence.tenant_active {
        return Way::Rest;
    }
    match sequence.step(due.next_step) {
        None => Way::Complete,
        Some(_) if due.steps_today >= steps_per_day => Way::Exit(ExitReason::LoopDetected),
        Some(step) => Way::Act(step),
    }
}
