//! What decides about a batch as a whole, and about a send of it: one pure decision for compliance, claim and fence.
//!
//! What stops for good goes before what waits, as an explanation says it.

use crate::gate::{RecipientEligibility, decide_recipient, decide_sender};
use schemas::{CampaignStatus, Classification, DomainStatus, MessageKind, OnMiss, SkipReason};

/// What is known of a batch at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchEligibility {
    /// Its campaign's status; `None`: it is no campaign's.
    pub campaign: Option<CampaignStatus>,
    /// Its campaign is paused.
    pub paused: bool,
    /// The campaign's window is closed: what that means for what is left.
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

/// What the gate decides.
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
    /// The tenant is paused: not now, and compliance puts the batch aside.
    TenantPaused,
}

impl BatchEligibility {
    /// What holds for every send of the batch, before its recipient is looked at.
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

/// What holds for one send. A contact that cannot be found, or was erased, is not mailed.
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
    match contact.map(|standing| decide_recipient(standing, kind, classification)) {
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
    fn the_recipients_standing_is_judged_as_everywhere() {
        let left = RecipientEligibility { unsubscribed: true, ..RecipientEligibility::CLEAN };
        assert_eq!(decide_send(Some(&OPEN), Some(&left), CAMPAIGN), GateDecision::Skip(SkipReason::Unsubscribed));
        assert_eq!(decide_send(Some(&OPEN), Some(&left), RECEIPT), GateDecision::Pass);
    }

    #[test]
    fn what_cannot_be_found_is_not_mailed() {
        assert_eq!(decide_send(Some(&OPEN), None, RECEIPT), GateDecision::Skip(SkipReason::ContactArchived));
        assert_eq!(decide_send(None, Some(&RecipientEligibility::CLEAN), RECEIPT), GateDecision::Paused);
    }
}
