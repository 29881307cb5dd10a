//! The last gate, as one pure decision.

use crate::gate::{Standing, judge, judge_sender};
use schemas::{CampaignStatus, Classification, DomainStatus, MessageKind, OnMiss, SkipReason};

/// What may have stopped a batch since it was claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchStanding {
    pub campaign: Option<CampaignStatus>,
    pub paused: bool,
    /// The campaign's window is closed: what that means for what is left.
    pub missed: Option<OnMiss>,
    pub tenant_active: bool,
    pub tenant_paused: bool,
    pub sender_active: bool,
    pub domain: DomainStatus,
}

/// The gate's verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The body may leave.
    Pass,
    /// Withheld, for this reason.
    Skip(SkipReason),
    /// The campaign was cancelled.
    Cancel,
    /// The campaign is paused: not now.
    Hold,
    /// The tenant is paused: not now, and compliance puts the batch aside.
    Rest,
}

impl BatchStanding {
    /// The verdict on every send of the batch, before its recipient is looked at.
    pub fn verdict(&self) -> Verdict {
        if self.campaign == Some(CampaignStatus::Cancelled) {
            return Verdict::Cancel;
        }
        if !self.tenant_active {
            return Verdict::Skip(SkipReason::TenantSuspended);
        }
        if let Some(reason) = judge_sender(self.sender_active, self.domain) {
            return Verdict::Skip(reason);
        }
        match self.missed {
            Some(OnMiss::Skip) => Verdict::Skip(SkipReason::WindowMissed),
            Some(OnMiss::Hold) => Verdict::Hold,
            Some(OnMiss::Send) | None if self.tenant_paused => Verdict::Rest,
            Some(OnMiss::Send) | None if self.paused => Verdict::Hold,
            Some(OnMiss::Send) | None => Verdict::Pass,
        }
    }
}

/// The verdict on one send. A contact that cannot be found, or was erased, is not mailed.
pub fn verdict(
    batch: Option<&BatchStanding>,
    contact: Option<&Standing>,
    (kind, classification): (MessageKind, Classification),
) -> Verdict {
    let Some(batch) = batch else { return Verdict::Hold };
    match batch.verdict() {
        Verdict::Pass => {}
        stopped => return stopped,
    }
    match contact.map(|standing| judge(standing, kind, classification)) {
        None => Verdict::Skip(SkipReason::ContactArchived),
        Some(Some(reason)) => Verdict::Skip(reason),
        Some(None) => Verdict::Pass,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const OPEN: BatchStanding = BatchStanding {
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
    #[case::open(OPEN, Verdict::Pass)]
    #[case::no_campaign(BatchStanding { campaign: None, ..OPEN }, Verdict::Pass)]
    #[case::degraded(BatchStanding { domain: DomainStatus::Degraded, ..OPEN }, Verdict::Pass)]
    #[case::cancelled(BatchStanding { campaign: Some(CampaignStatus::Cancelled), ..OPEN }, Verdict::Cancel)]
    #[case::cancelled_while_paused(BatchStanding { campaign: Some(CampaignStatus::Cancelled), paused: true, ..OPEN }, Verdict::Cancel)]
    #[case::paused(BatchStanding { paused: true, ..OPEN }, Verdict::Hold)]
    #[case::missed(BatchStanding { missed: Some(OnMiss::Skip), ..OPEN }, Verdict::Skip(SkipReason::WindowMissed))]
    #[case::missed_while_paused(BatchStanding { missed: Some(OnMiss::Skip), paused: true, ..OPEN }, Verdict::Skip(SkipReason::WindowMissed))]
    #[case::missed_and_held(BatchStanding { missed: Some(OnMiss::Hold), ..OPEN }, Verdict::Hold)]
    #[case::missed_and_sent(BatchStanding { missed: Some(OnMiss::Send), ..OPEN }, Verdict::Pass)]
    #[case::missed_and_cancelled(BatchStanding { missed: Some(OnMiss::Skip), campaign: Some(CampaignStatus::Cancelled), ..OPEN }, Verdict::Cancel)]
    #[case::tenant(BatchStanding { tenant_active: false, ..OPEN }, Verdict::Skip(SkipReason::TenantSuspended))]
    #[case::tenant_paused(BatchStanding { tenant_paused: true, ..OPEN }, Verdict::Rest)]
    #[case::tenant_and_campaign_paused(BatchStanding { tenant_paused: true, paused: true, ..OPEN }, Verdict::Rest)]
    #[case::tenant_paused_and_missed(BatchStanding { tenant_paused: true, missed: Some(OnMiss::Skip), ..OPEN }, Verdict::Skip(SkipReason::WindowMissed))]
    #[case::tenant_paused_and_cancelled(BatchStanding { tenant_paused: true, campaign: Some(CampaignStatus::Cancelled), ..OPEN }, Verdict::Cancel)]
    #[case::tenant_paused_and_suspended(BatchStanding { tenant_paused: true, tenant_active: false, ..OPEN }, Verdict::Skip(SkipReason::TenantSuspended))]
    #[case::sender(BatchStanding { sender_active: false, ..OPEN }, Verdict::Skip(SkipReason::SenderDisabled))]
    #[case::domain_failed(BatchStanding { domain: DomainStatus::Failed, ..OPEN }, Verdict::Skip(SkipReason::DomainUnverified))]
    #[case::domain_suspended(BatchStanding { domain: DomainStatus::Suspended, ..OPEN }, Verdict::Skip(SkipReason::DomainUnverified))]
    fn what_stops_a_batch_stops_its_sends(#[case] batch: BatchStanding, #[case] expected: Verdict) {
        assert_eq!(verdict(Some(&batch), Some(&Standing::CLEAN), CAMPAIGN), expected);
    }

    #[test]
    fn the_recipients_standing_is_judged_as_everywhere() {
        let left = Standing { unsubscribed: true, ..Standing::CLEAN };
        assert_eq!(verdict(Some(&OPEN), Some(&left), CAMPAIGN), Verdict::Skip(SkipReason::Unsubscribed));
        assert_eq!(verdict(Some(&OPEN), Some(&left), RECEIPT), Verdict::Pass);
    }

    #[test]
    fn what_cannot_be_found_is_not_mailed() {
        assert_eq!(verdict(Some(&OPEN), None, RECEIPT), Verdict::Skip(SkipReason::ContactArchived));
        assert_eq!(verdict(None, Some(&Standing::CLEAN), RECEIPT), Verdict::Hold);
    }
}
