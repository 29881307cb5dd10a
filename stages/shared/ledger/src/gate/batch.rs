//! One pure decision about a batch as a whole, and about each of its sends: for compliance, delivery's read and the fence.
//!
//! A reason that stops for good goes before one that makes the batch wait; explanations name them in the same order.

use crate::gate::{RecipientEligibility, decide_recipient, decide_sender};
use schemas::{CampaignStatus, Classification, DomainStatus, MessageKind, OnMiss, SkipReason};

/// The facts about a batch at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchEligibility {
    /// Its campaign's status; `None`: it belongs to no campaign.
    pub campaign: Option<CampaignStatus>,
    /// Its campaign is paused.
    pub paused: bool,
    /// Set when the campaign's window is closed: what happens to the sends that are left.
    pub missed: Option<OnMiss>,
    /// Its tenant may send.
    pub tenant_active: bool,
    /// Its tenant is paused.
    pub tenant_paused: bool,
    /// Its sender is active.
    pub sender_active: bool,
    /// The status of its sender's domain.
    pub domain: DomainStatus,
}

/// The decision of the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateDecision {
    /// The body may leave.
    Pass,
    /// Withheld, for this reason.
    Skip(SkipReason),
    /// The campaign was cancelled.
    Cancel,
    /// The campaign is paused: not now.
    Paused,
    /// The tenant is paused: not now, and compliance sets the batch aside.
    TenantPaused,
}

impl BatchEligibility {
    /// The decision for every send of the batch, before its recipient is considered.
    #[must_use]
    pub fn decide(&self) -> GateDecision {
        if self.campaign == Some(CampaignStatus::Cancelled) {
            return GateDecision::Cancel;
        }
        if !self.tenant_active {
            return GateDecision::Skip(SkipReason::TenantSuspended);
        }
        if let Some(reason) = decide_sender(self.sender_active, self.domain) {
            return GateDecision::Skip(reason);
        }
        match self.missed {
            Some(OnMiss::Skip) => GateDecision::Skip(SkipReason::WindowMissed),
            Some(OnMiss::Hold) => GateDecision::Paused,
            Some(OnMiss::Send) | None if self.tenant_paused => GateDecision::TenantPaused,
            Some(OnMiss::Send) | None if self.paused => GateDecision::Paused,
            Some(OnMiss::Send) | None => GateDecision::Pass,
        }
    }
}

/// The decision for one send. A contact that cannot be found, or was erased, is not mailed.
#[must_use]
pub fn decide_send(
    batch: Option<&BatchEligibility>,
    contact: Option<&RecipientEligibility>,
    (kind, classification): (MessageKind, Classification),
) -> GateDecision {
    let Some(batch) = batch else { return GateDecision::Paused };
    match batch.decide() {
        GateDecision::Pass => {}
        stopped => return stopped,
    }
    match contact.map(|contact| decide_recipient(contact, kind, classification)) {
        None => GateDecision::Skip(SkipReason::ContactArchived),
        Some(Some(reason)) => GateDecision::Skip(reason),
        Some(None) => GateDecision::Pass,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const OPEN: BatchEligibility = BatchEligibility {
        campaign: Some(CampaignStatus::Sending),
        paused: false,
        missed: None,
        tenant_active: true,
        tenant_paused: false,
        sender_active: true,
        domain: DomainStatus::Verified,
    };

    const CAMPAIGN: (MessageKind, Classification) = (MessageKind::Campaign, Classification::Marketing);
    const RECEIPT: (MessageKind, Classification) = (MessageKind::Transactional, Classification::Transactional);

    #[rstest]
    #[case::open(OPEN, GateDecision::Pass)]
    #[case::no_campaign(BatchEligibility { campaign: None, ..OPEN }, GateDecision::Pass)]
    #[case::degraded(BatchEligibility { domain: DomainStatus::Degraded, ..OPEN }, GateDecision::Pass)]
    #[case::cancelled(BatchEligibility { campaign: Some(CampaignStatus::Cancelled), ..OPEN }, GateDecision::Cancel)]
    #[case::cancelled_while_paused(BatchEligibility { campaign: Some(CampaignStatus::Cancelled), paused: true, ..OPEN }, GateDecision::Cancel)]
    #[case::paused(BatchEligibility { paused: true, ..OPEN }, GateDecision::Paused)]
    #[case::missed(BatchEligibility { missed: Some(OnMiss::Skip), ..OPEN }, GateDecision::Skip(SkipReason::WindowMissed))]
    #[case::missed_while_paused(BatchEligibility { missed: Some(OnMiss::Skip), paused: true, ..OPEN }, GateDecision::Skip(SkipReason::WindowMissed))]
    #[case::missed_and_held(BatchEligibility { missed: Some(OnMiss::Hold), ..OPEN }, GateDecision::Paused)]
    #[case::missed_and_sent(BatchEligibility { missed: Some(OnMiss::Send), ..OPEN }, GateDecision::Pass)]
    #[case::missed_and_cancelled(BatchEligibility { missed: Some(OnMiss::Skip), campaign: Some(CampaignStatus::Cancelled), ..OPEN }, GateDecision::Cancel)]
    #[case::tenant(BatchEligibility { tenant_active: false, ..OPEN }, GateDecision::Skip(SkipReason::TenantSuspended))]
    #[case::tenant_paused(BatchEligibility { tenant_paused: true, ..OPEN }, GateDecision::TenantPaused)]
    #[case::tenant_and_campaign_paused(BatchEligibility { tenant_paused: true, paused: true, ..OPEN }, GateDecision::TenantPaused)]
    #[case::tenant_paused_and_missed(BatchEligibility { tenant_paused: true, missed: Some(OnMiss::Skip), ..OPEN }, GateDecision::Skip(SkipReason::WindowMissed))]
    #[case::tenant_paused_and_cancelled(BatchEligibility { tenant_paused: true, campaign: Some(CampaignStatus::Cancelled), ..OPEN }, GateDecision::Cancel)]
    #[case::tenant_paused_and_suspended(BatchEligibility { tenant_paused: true, tenant_active: false, ..OPEN }, GateDecision::Skip(SkipReason::TenantSuspended))]
    #[case::sender(BatchEligibility { sender_active: false, ..OPEN }, GateDecision::Skip(SkipReason::SenderDisabled))]
    #[case::domain_failed(BatchEligibility { domain: DomainStatus::Failed, ..OPEN }, GateDecision::Skip(SkipReason::DomainUnverified))]
    #[case::domain_suspended(BatchEligibility { domain: DomainStatus::Suspended, ..OPEN }, GateDecision::Skip(SkipReason::DomainUnverified))]
    fn what_stops_a_batch_stops_its_sends(#[case] batch: BatchEligibility, #[case] expected: GateDecision) {
        assert_eq!(decide_send(Some(&batch), Some(&RecipientEligibility::CLEAN), CAMPAIGN), expected);
    }

    #[test]
    fn a_batch_that_may_send_still_asks_the_recipients_gate() {
        let left = RecipientEligibility { unsubscribed: true, ..RecipientEligibility::CLEAN };
        assert_eq!(decide_send(Some(&OPEN), Some(&left), CAMPAIGN), GateDecision::Skip(SkipReason::Unsubscribed));
        assert_eq!(decide_send(Some(&OPEN), Some(&left), RECEIPT), GateDecision::Pass);
    }

    #[test]
    fn a_missing_contact_is_not_mailed() {
        assert_eq!(decide_send(Some(&OPEN), None, RECEIPT), GateDecision::Skip(SkipReason::ContactArchived));
        assert_eq!(decide_send(None, Some(&RecipientEligibility::CLEAN), RECEIPT), GateDecision::Paused);
    }
}
