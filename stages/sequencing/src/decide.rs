//! Pure decisions about an enrollment: whether it ends before its last step, made before each step and by the sweep between steps, and
//! what a due one does next.

use ledger::gate::{MarketingStatus, RecipientEligibility};
use schemas::{ExitReason, SequenceStatus};

use crate::{
    due::{Due, EnrolledContact},
    sequence::{Sequence, Step},
};

/// Which events end an enrollment of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExitRules {
    pub(crate) on_unsubscribe: bool,
    pub(crate) on_bounce: bool,
    pub(crate) on_complaint: bool,
}

/// Why the contact's enrollment ends now, the gravest reason first. A contact whose consent is pending stays enrolled: the gate withholds
/// its mail, and the other steps are taken. `opted_out_by_step`: a step of this enrollment suppressed or unsubscribed the contact itself,
/// which was part of the plan.
fn exit_reason(eligibility: &RecipientEligibility, rules: ExitRules, opted_out_by_step: bool) -> Option<ExitReason> {
    let left = eligibility.unsubscribed || eligibility.marketing == MarketingStatus::Unsubscribed;
    let suppressed = eligibility.suppressed_all || eligibility.suppressed_marketing || eligibility.invalid;
    let reasons = [
        (!eligibility.contact_active, ExitReason::ContactArchived),
        (eligibility.complained && rules.on_complaint, ExitReason::Complained),
        (eligibility.hard_bounced && rules.on_bounce, ExitReason::Bounced),
        (left && rules.on_unsubscribe && !opted_out_by_step, ExitReason::Unsubscribed),
        (suppressed && !opted_out_by_step, ExitReason::Suppressed),
    ];
    reasons.iter().find(|(holds, _)| *holds).map(|(_, reason)| *reason)
}

/// What happened to an enrollment itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EnrollmentFacts {
    pub(crate) opted_out_by_step: bool,
    /// The contact answered one of its mails.
    pub(crate) replied: bool,
    /// The event that ends it was recorded since it began.
    pub(crate) ended_by_event: bool,
}

/// Why an enrollment of this contact ends now, if it does.
pub(crate) fn early_exit(
    eligibility: &RecipientEligibility,
    rules: ExitRules,
    facts: EnrollmentFacts,
) -> Option<ExitReason> {
    exit_reason(eligibility, rules, facts.opted_out_by_step)
        .or(facts.replied.then_some(ExitReason::Replied))
        .or(facts.ended_by_event.then_some(ExitReason::Event))
}

/// The decision about a due enrollment.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NextMove<'a> {
    /// This contact takes its step.
    Step(&'a Step, &'a EnrolledContact),
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
    person: Option<&'a EnrolledContact>,
    steps_per_day: i64,
) -> NextMove<'a> {
    let Some(person) = person else { return NextMove::Exit(ExitReason::ContactArchived) };
    if sequence.status == SequenceStatus::Archived {
        return NextMove::Exit(ExitReason::SequenceArchived);
    }
    let facts = EnrollmentFacts {
        opted_out_by_step: due.opted_out_by_step,
        replied: person.replied,
        ended_by_event: person.ended_by_event,
    };
    if let Some(reason) = early_exit(&person.eligibility, sequence.rules, facts) {
        return NextMove::Exit(reason);
    }
    if sequence.status != SequenceStatus::Active || !sequence.tenant_active {
        return NextMove::Pause;
    }
    match sequence.step(due.version, due.next_step) {
        None => NextMove::Complete,
        Some(_) if person.steps_today >= steps_per_day => NextMove::Exit(ExitReason::LoopDetected),
        Some(step) => NextMove::Step(step, person),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const C: RecipientEligibility = RecipientEligibility::CLEAN;

    #[rstest]
    #[case(C, None, None, None)]
    #[case(RecipientEligibility { marketing: MarketingStatus::Pending, ..C }, None, None, None)]
    #[case(RecipientEligibility { unsubscribed: true, ..C }, Some(ExitReason::Unsubscribed), None, None)]
    #[case(RecipientEligibility { marketing: MarketingStatus::Unsubscribed, ..C }, Some(ExitReason::Unsubscribed), None, None)]
    #[case(RecipientEligibility { hard_bounced: true, ..C }, Some(ExitReason::Bounced), None, Some(ExitReason::Bounced))]
    #[case(RecipientEligibility { complained: true, ..C }, Some(ExitReason::Complained), None, Some(ExitReason::Complained))]
    #[case(RecipientEligibility { suppressed_all: true, ..C }, Some(ExitReason::Suppressed), Some(ExitReason::Suppressed), None)]
    #[case(RecipientEligibility { suppressed_marketing: true, ..C }, Some(ExitReason::Suppressed), Some(ExitReason::Suppressed), None)]
    #[case(RecipientEligibility { invalid: true, ..C }, Some(ExitReason::Suppressed), Some(ExitReason::Suppressed), None)]
    #[case(RecipientEligibility { contact_active: false, ..C }, Some(ExitReason::ContactArchived), Some(ExitReason::ContactArchived), Some(ExitReason::ContactArchived))]
    #[case(RecipientEligibility { complained: true, hard_bounced: true, unsubscribed: true, ..C }, Some(ExitReason::Complained), None, Some(ExitReason::Complained))]
    fn opt_outs_bounces_and_complaints_end_an_enrollment(
        #[case] eligibility: RecipientEligibility,
        #[case] with_flags: Option<ExitReason>,
        #[case] without: Option<ExitReason>,
        #[case] after_step: Option<ExitReason>,
    ) {
        let all = ExitRules { on_unsubscribe: true, on_bounce: true, on_complaint: true };
        let none = ExitRules { on_unsubscribe: false, on_bounce: false, on_complaint: false };
        assert_eq!(exit_reason(&eligibility, all, false), with_flags);
        assert_eq!(exit_reason(&eligibility, none, false), without);
        assert_eq!(exit_reason(&eligibility, all, true), after_step);
    }
}
