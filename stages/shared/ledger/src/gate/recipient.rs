//! Whether a recipient may be mailed: one pure decision for launch count, dry run, explanation, compliance and fence.
//!
//! Facts are read set-based (SQL function `recipient_eligibility`) and decided here, row by row.

use std::collections::HashMap;

use chrono_tz::Tz;
use schemas::{Classification, DomainStatus, MarketingStatus, MessageKind, SkipReason};
use uuid::Uuid;

/// The facts about one recipient at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecipientEligibility {
    /// The contact is not archived. (An erased contact has no eligibility at all, and is not mailed.)
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
    /// Marketing mails that the frequency cap leaves the contact now; `None`: the tenant has no cap.
    pub cap_left: Option<i64>,
    /// The contact's time zone, if the tenant's quiet hours are by it.
    pub zone: Option<Tz>,
}

impl RecipientEligibility {
    /// A contact with nothing against it.
    pub const CLEAN: Self = Self {
        contact_active: true,
        marketing: MarketingStatus::Subscribed,
        hard_bounced: false,
        complained: false,
        unsubscribed: false,
        invalid: false,
        suppressed_all: false,
        suppressed_marketing: false,
        cap_left: None,
        zone: None,
    };

    /// The same contact, about mail of a topic: one who has left it is unsubscribed from that mail.
    #[must_use]
    pub(crate) fn about_topic(&self, has_left: bool) -> Self {
        Self { unsubscribed: self.unsubscribed || has_left, ..*self }
    }
}

/// True if all of these contacts of a tenant may be mailed, by the eligibility that is known of them.
#[must_use]
pub fn may_all_be_mailed(
    known: &HashMap<(Uuid, Uuid), RecipientEligibility>,
    tenant: Uuid,
    contacts: &[Uuid],
    (kind, classification): (MessageKind, Classification),
) -> bool {
    contacts.iter().all(|contact| {
        let known = known.get(&(tenant, *contact));
        known.is_some_and(|known| decide_recipient(known, kind, classification).is_none())
    })
}

/// The eligibility in a row of the SQL function `recipient_eligibility`. `$zone`: the column with the contact's time zone, if the tenant's
/// quiet hours go by it.
#[macro_export]
macro_rules! recipient_eligibility {
    ($row:ident, $zone:ident) => {
        $crate::gate::RecipientEligibility {
            contact_active: $row.contact_active,
            marketing: $crate::gate::MarketingStatus::from_column(&$row.marketing_status),
            hard_bounced: $row.hard_bounced,
            complained: $row.complained,
            unsubscribed: $row.unsubscribed,
            invalid: $row.invalid,
            suppressed_all: $row.suppressed_all,
            suppressed_marketing: $row.suppressed_marketing,
            cap_left: $row.cap_left,
            zone: $crate::gate::zone_named($row.$zone.as_deref()),
        }
    };
}

/// Decides whether a recipient may be mailed. `None`: yes. `Some`: withheld, for this reason (the gravest first).
///
/// Hard suppressions (bounce, complaint, invalid, manual with scope `all`) hold for every classification (spec rule 7).
/// Marketing opt-outs hold for marketing only. An archived contact gets no marketing and no campaign, whose audiences have no archived
/// contacts; a receipt or a one-off message still reaches it. The test of a campaign needs no consent: its recipients try it out.
/// The frequency cap holds for marketing of campaigns and sequences ([`is_capped`]).
#[must_use]
pub fn decide_recipient(
    recipient: &RecipientEligibility,
    kind: MessageKind,
    classification: Classification,
) -> Option<SkipReason> {
    let is_marketing = classification == Classification::Marketing;
    let hard = [
        (recipient.hard_bounced, SkipReason::HardBounced),
        (recipient.complained, SkipReason::Complained),
        (recipient.invalid, SkipReason::InvalidAddress),
        (recipient.suppressed_all, SkipReason::Suppressed),
        (!recipient.contact_active && (is_marketing || kind == MessageKind::Campaign), SkipReason::ContactArchived),
    ];
    let marketing = [
        (recipient.unsubscribed, SkipReason::Unsubscribed),
        (recipient.marketing == MarketingStatus::Unsubscribed, SkipReason::Unsubscribed),
        (recipient.suppressed_marketing, SkipReason::Suppressed),
        (recipient.marketing == MarketingStatus::Pending && kind != MessageKind::Test, SkipReason::NoConsent),
        (recipient.cap_left.is_some_and(|left| left <= 0) && is_capped(kind, classification), SkipReason::FrequencyCap),
    ];
    let first = |rules: &[(bool, SkipReason)]| rules.iter().find(|(holds, _)| *holds).map(|(_, reason)| *reason);
    first(&hard).or_else(|| first(&marketing).filter(|_| is_marketing))
}

/// True for mail that counts against the frequency cap and is held back by it. Other mail does neither: what a person waits for must not
/// use up room, nor wait for it.
#[must_use]
pub fn is_capped(kind: MessageKind, classification: Classification) -> bool {
    classification == Classification::Marketing && matches!(kind, MessageKind::Campaign | MessageKind::Sequence)
}

/// Decides whether a sender may send. `None`: yes. `Some`: every recipient is withheld, for this reason.
#[must_use]
pub fn decide_sender(is_active: bool, domain: DomainStatus) -> Option<SkipReason> {
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
        assert_eq!(decide_sender(is_active, domain), expected);
    }

    const C: RecipientEligibility = RecipientEligibility::CLEAN;

    #[rstest]
    #[case(C, None, None)]
    #[case(RecipientEligibility { hard_bounced: true, ..C }, Some(SkipReason::HardBounced), Some(SkipReason::HardBounced))]
    #[case(RecipientEligibility { complained: true, ..C }, Some(SkipReason::Complained), Some(SkipReason::Complained))]
    #[case(RecipientEligibility { invalid: true, ..C }, Some(SkipReason::InvalidAddress), Some(SkipReason::InvalidAddress))]
    #[case(RecipientEligibility { suppressed_all: true, ..C }, Some(SkipReason::Suppressed), Some(SkipReason::Suppressed))]
    #[case(RecipientEligibility { unsubscribed: true, ..C }, Some(SkipReason::Unsubscribed), None)]
    #[case(RecipientEligibility { marketing: MarketingStatus::Unsubscribed, ..C }, Some(SkipReason::Unsubscribed), None)]
    #[case(RecipientEligibility { marketing: MarketingStatus::Pending, ..C }, Some(SkipReason::NoConsent), None)]
    #[case(RecipientEligibility { suppressed_marketing: true, ..C }, Some(SkipReason::Suppressed), None)]
    #[case(RecipientEligibility { unsubscribed: true, hard_bounced: true, ..C }, Some(SkipReason::HardBounced), Some(SkipReason::HardBounced))]
    fn opt_outs_bind_marketing_and_hard_suppressions_bind_all(
        #[case] recipient: RecipientEligibility,
        #[case] marketing: Option<SkipReason>,
        #[case] other: Option<SkipReason>,
    ) {
        for kind in MessageKind::ALL {
            let needs_consent = *kind != MessageKind::Test || marketing != Some(SkipReason::NoConsent);
            let marketing = marketing.filter(|_| needs_consent);
            assert_eq!(decide_recipient(&recipient, *kind, Classification::Marketing), marketing);
            assert_eq!(decide_recipient(&recipient, *kind, Classification::Operational), other);
            assert_eq!(decide_recipient(&recipient, *kind, Classification::Transactional), other);
        }
    }

    #[rstest]
    #[case::campaign(MessageKind::Campaign, Classification::Marketing, true)]
    #[case::step(MessageKind::Sequence, Classification::Marketing, true)]
    #[case::notice_to_many(MessageKind::Campaign, Classification::Operational, false)]
    #[case::one_off(MessageKind::OneOff, Classification::Marketing, false)]
    #[case::receipt(MessageKind::Transactional, Classification::Transactional, false)]
    #[case::test(MessageKind::Test, Classification::Marketing, false)]
    fn the_cap_binds_marketing_of_campaigns_and_sequences(
        #[case] kind: MessageKind,
        #[case] classification: Classification,
        #[case] is_held: bool,
    ) {
        let with_left = |left| RecipientEligibility { cap_left: Some(left), ..C };
        assert_eq!(decide_recipient(&with_left(1), kind, classification), None);
        for left in [0, -1] {
            let expected = is_held.then_some(SkipReason::FrequencyCap);
            assert_eq!(decide_recipient(&with_left(left), kind, classification), expected);
        }
        let gone = RecipientEligibility { hard_bounced: true, ..with_left(0) };
        assert_eq!(decide_recipient(&gone, kind, classification), Some(SkipReason::HardBounced));
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
        let archived = RecipientEligibility { contact_active: false, ..C };
        assert_eq!(
            decide_recipient(&archived, kind, classification),
            (!is_mailed).then_some(SkipReason::ContactArchived)
        );
        let gone = RecipientEligibility { hard_bounced: true, ..archived };
        assert_eq!(decide_recipient(&gone, kind, classification), Some(SkipReason::HardBounced));
    }
}
