//! The compliance gate as one pure decision, so that the compliance stage, the claim and the fence cannot disagree.
//!
//! Facts are read set-based (SQL function `standings`), the verdict is decided here, row by row.

use schemas::{Classification, DomainStatus, MessageKind, SkipReason};

/// Whether a contact has agreed to marketing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarketingStatus {
    /// Agreed, or imported with a stated basis.
    Subscribed,
    /// Left.
    Unsubscribed,
    /// Not (yet) agreed.
    Pending,
}

impl MarketingStatus {
    /// From the column; an unknown word counts as not agreed (the gate fails closed).
    #[must_use]
    pub fn from_column(text: &str) -> Self {
        match text {
            "subscribed" => Self::Subscribed,
            "unsubscribed" => Self::Unsubscribed,
            _ => Self::Pending,
        }
    }
}

/// What is known of one recipient at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The contact is not archived. (One that was erased has no standing at all, and is not mailed.)
    pub contact_active: bool,
    /// Marketing consent.
    pub marketing: MarketingStatus,
    /// A live suppression with reason `hard_bounce`.
    pub hard_bounced: bool,
    /// A live suppression with reason `complaint`.
    pub complained: bool,
    /// A live suppression with reason `unsubscribe` (scope `marketing`).
    pub unsubscribed: bool,
    /// A live suppression with reason `invalid`.
    pub invalid: bool,
    /// Any other live suppression with scope `all`.
    pub suppressed_all: bool,
    /// Any other live suppression with scope `marketing`.
    pub suppressed_marketing: bool,
}

impl Standing {
    /// A contact nothing is held against.
    pub const CLEAN: Self = Self {
        contact_active: true,
        marketing: MarketingStatus::Subscribed,
        hard_bounced: false,
        complained: false,
        unsubscribed: false,
        invalid: false,
        suppressed_all: false,
        suppressed_marketing: false,
    };
}

/// May this recipient be mailed? `None`: yes. `Some`: withheld, for this reason (the gravest first).
///
/// Hard suppressions (bounce, complaint, invalid, manual with scope `all`) hold for every classification (spec rule 7).
/// Marketing opt-outs hold for marketing only. The archive holds for marketing and for campaigns, whose audiences have no archived
/// contacts; a receipt or a message to this very person still reaches one.
#[must_use]
pub fn judge(standing: &Standing, kind: MessageKind, classification: Classification) -> Option<SkipReason> {
    let is_marketing = classification == Classification::Marketing;
    let hard = [
        (standing.hard_bounced, SkipReason::HardBounced),
        (standing.complained, SkipReason::Complained),
        (standing.invalid, SkipReason::InvalidAddress),
        (standing.suppressed_all, SkipReason::Suppressed),
        (!standing.contact_active && (is_marketing || kind == MessageKind::Campaign), SkipReason::ContactArchived),
    ];
    let marketing = [
        (standing.unsubscribed, SkipReason::Unsubscribed),
        (standing.marketing == MarketingStatus::Unsubscribed, SkipReason::Unsubscribed),
        (standing.suppressed_marketing, SkipReason::Suppressed),
        (standing.marketing == MarketingStatus::Pending, SkipReason::NoConsent),
    ];
    let first = |rules: &[(bool, SkipReason)]| rules.iter().find(|(holds, _)| *holds).map(|(_, reason)| *reason);
    first(&hard).or_else(|| first(&marketing).filter(|_| is_marketing))
}

/// May mail leave in a sender's name? `None`: yes. `Some`: every recipient is withheld, for this reason.
#[must_use]
pub fn judge_sender(is_active: bool, domain: DomainStatus) -> Option<SkipReason> {
    if !is_active {
        return Some(SkipReason::SenderDisabled);
    }
    (!domain.may_send()).then_some(SkipReason::DomainUnverified)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(true, DomainStatus::Verified, None)]
    #[case(true, DomainStatus::Degraded, None)]
    #[case(true, DomainStatus::Pending, Some(SkipReason::DomainUnverified))]
    #[case(true, DomainStatus::Failed, Some(SkipReason::DomainUnverified))]
    #[case(true, DomainStatus::Suspended, Some(SkipReason::DomainUnverified))]
    #[case(false, DomainStatus::Verified, Some(SkipReason::SenderDisabled))]
    #[case(false, DomainStatus::Failed, Some(SkipReason::SenderDisabled))]
    fn a_sender_mails_while_it_is_active_and_its_domain_may(
        #[case] is_active: bool,
        #[case] domain: DomainStatus,
        #[case] expected: Option<SkipReason>,
    ) {
        assert_eq!(judge_sender(is_active, domain), expected);
    }

    const C: Standing = Standing::CLEAN;

    #[rstest]
    #[case(C, None, None)]
    #[case(Standing { hard_bounced: true, ..C }, Some(SkipReason::HardBounced), Some(SkipReason::HardBounced))]
    #[case(Standing { complained: true, ..C }, Some(SkipReason::Complained), Some(SkipReason::Complained))]
    #[case(Standing { invalid: true, ..C }, Some(SkipReason::InvalidAddress), Some(SkipReason::InvalidAddress))]
    #[case(Standing { suppressed_all: true, ..C }, Some(SkipReason::Suppressed), Some(SkipReason::Suppressed))]
    #[case(Standing { unsubscribed: true, ..C }, Some(SkipReason::Unsubscribed), None)]
    #[case(Standing { marketing: MarketingStatus::Unsubscribed, ..C }, Some(SkipReason::Unsubscribed), None)]
    #[case(Standing { marketing: MarketingStatus::Pending, ..C }, Some(SkipReason::NoConsent), None)]
    #[case(Standing { suppressed_marketing: true, ..C }, Some(SkipReason::Suppressed), None)]
    #[case(Standing { unsubscribed: true, hard_bounced: true, ..C }, Some(SkipReason::HardBounced), Some(SkipReason::HardBounced))]
    fn opt_outs_bind_marketing_and_hard_suppressions_bind_all(
        #[case] standing: Standing,
        #[case] marketing: Option<SkipReason>,
        #[case] other: Option<SkipReason>,
    ) {
        for kind in MessageKind::ALL {
            assert_eq!(judge(&standing, *kind, Classification::Marketing), marketing);
            assert_eq!(judge(&standing, *kind, Classification::Operational), other);
            assert_eq!(judge(&standing, *kind, Classification::Transactional), other);
        }
    }

    #[rstest]
    #[case::campaign(MessageKind::Campaign, Classification::Marketing, false)]
    #[case::notice_to_many(MessageKind::Campaign, Classification::Operational, false)]
    #[case::marketing_step(MessageKind::Sequence, Classification::Marketing, false)]
    #[case::operational_step(MessageKind::Sequence, Classification::Operational, true)]
    #[case::transactional(MessageKind::Transactional, Classification::Transactional, true)]
    #[case::one_off(MessageKind::OneOff, Classification::Operational, true)]
    fn the_archive_binds_marketing_and_campaigns(
        #[case] kind: MessageKind,
        #[case] classification: Classification,
        #[case] is_mailed: bool,
    ) {
        let archived = Standing { contact_active: false, ..C };
        assert_eq!(judge(&archived, kind, classification), (!is_mailed).then_some(SkipReason::ContactArchived));
        let gone = Standing { hard_bounced: true, ..archived };
        assert_eq!(judge(&gone, kind, classification), Some(SkipReason::HardBounced));
    }
}
