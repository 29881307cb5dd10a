//! When an enrollment ends before its last step: one pure decision, for the step that is about to act and for the look between
//! steps.

use ledger::gate::{MarketingStatus, RecipientEligibility};
use schemas::ExitReason;

/// What a sequence says about leaving it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExitRules {
    pub(crate) on_unsubscribe: bool,
    pub(crate) on_bounce: bool,
    pub(crate) on_complaint: bool,
    /// A step of this enrollment suppressed or unsubscribed the contact itself: that was part of the plan.
    pub(crate) opted_out_by_step: bool,
}

/// Why the enrollment of a contact of this standing ends now, the gravest reason first. A contact whose consent is pending stays:
/// its mail is withheld by the gate, the other steps are taken.
pub(crate) fn exit_reason(standing: &RecipientEligibility, rules: &ExitRules) -> Option<ExitReason> {
    let left = standing.unsubscribed || standing.marketing == MarketingStatus::Unsubscribed;
    let suppressed = standing.suppressed_all || standing.suppressed_marketing || standing.invalid;
    let reasons = [
        (!standing.contact_active, ExitReason::ContactArchived),
        (standing.complained && rules.on_complaint, ExitReason::Complained),
        (standing.hard_bounced && rules.on_bounce, ExitReason::Bounced),
        (left && rules.on_unsubscribe && !rules.opted_out_by_step, ExitReason::Unsubscribed),
        (suppressed && !rules.opted_out_by_step, ExitReason::Suppressed),
    ];
    reasons.iter().find(|(holds, _)| *holds).map(|(_, reason)| *reason)
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
    fn who_must_leave_leaves(
        #[case] standing: RecipientEligibility,
        #[case] with_flags: Option<ExitReason>,
        #[case] without: Option<ExitReason>,
        #[case] opted_out_by_step: Option<ExitReason>,
    ) {
        let all = ExitRules { on_unsubscribe: true, on_bounce: true, on_complaint: true, opted_out_by_step: false };
        let none = ExitRules { on_unsubscribe: false, on_bounce: false, on_complaint: false, opted_out_by_step: false };
        assert_eq!(exit_reason(&standing, &all), with_flags);
        assert_eq!(exit_reason(&standing, &none), without);
        assert_eq!(exit_reason(&standing, &ExitRules { opted_out_by_step: true, ..all }), opted_out_by_step);
    }
}
