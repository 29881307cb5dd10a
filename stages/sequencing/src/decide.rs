//! One pure decision about a due enrollment.

use schemas::{ExitReason, SequenceStatus};

use crate::{
    due::{Due, EnrolledContact},
    exit::exit_reason,
    sequence::{Sequence, Step},
};

/// The decision about a due enrollment.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NextMove<'a> {
    /// Its step is taken.
    Step(&'a Step),
    /// It ends early.
    Exit(ExitReason),
    /// Every step is taken.
    Complete,
    /// The sequence or its tenant is paused, or the tenant is suspended: the enrollment is paused too, and keeps its time.
    Pause,
}

/// Decides about a due enrollment. An exit goes before a pause: a contact that has opted out does not wait for a resumption.
pub(crate) fn next_move<'a>(
    due: &Due,
    sequence: &'a Sequence,
    person: Option<&EnrolledContact>,
    steps_per_day: i64,
) -> NextMove<'a> {
    let Some(person) = person else { return NextMove::Exit(ExitReason::ContactArchived) };
    if sequence.status == SequenceStatus::Archived {
        return NextMove::Exit(ExitReason::SequenceArchived);
    }
    if let Some(reason) = exit_reason(&person.eligibility, &sequence.rules(due.opted_out_by_step)) {
        return NextMove::Exit(reason);
    }
    if person.replied {
        return NextMove::Exit(ExitReason::Replied);
    }
    if person.ended_by_event {
        return NextMove::Exit(ExitReason::Event);
    }
    if sequence.status != SequenceStatus::Active || !sequence.tenant_active {
        return NextMove::Pause;
    }
    match sequence.step(due.version, due.next_step) {
        None => NextMove::Complete,
        Some(_) if person.steps_today >= steps_per_day => NextMove::Exit(ExitReason::LoopDetected),
        Some(step) => NextMove::Step(step),
    }
}
