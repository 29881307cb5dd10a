//! One pure decision about a batch as a whole, and about each of its sends: for compliance, delivery's read and the fence.
//!
//! A reason that stops for good goes before one that makes the batch wait; explanations name them in the same order.

use crate::frequency::{YIELD_WAIT, is_spoken_for};
use crate::gate::{QuietRule, RecipientEligibility, decide_recipient, decide_sender, is_capped};
use chrono::{DateTime, Utc};
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
    pub tenant_active: bool,
    pub tenant_paused: bool,
    pub sender_active: bool,
    /// The status of its sender's domain.
    pub domain: DomainStatus,
    /// The tenant's quiet hours, if they hold for it.
    pub quiet: Option<QuietRule>,
}

/// The facts about one send beside its recipient.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SendFacts {
    /// How many mails running campaigns owe the contact that are more urgent; they matter under a frequency cap.
    pub more_urgent: i64,
    /// The contact has left the topic of its campaign since the launch, and with it this campaign.
    pub has_left_topic: bool,
    /// The enrollment that it is of has ended early.
    pub has_exited: bool,
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
    /// Not now: the fence puts it off.
    Wait(Hold),
}

/// Why a mail is put off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// The contact has had as many mails as the frequency cap allows. A campaign skips the contact; the mail of a sequence waits for room.
    FrequencyCap,
    /// The room that the frequency cap leaves is spoken for: running campaigns that are more urgent owe the contact mail.
    MoreUrgent {
        /// When it is decided again.
        until: DateTime<Utc>,
    },
    /// It is quiet where the contact is.
    QuietHours {
        /// When it is not any more.
        until: DateTime<Utc>,
    },
}

/// The reason on mail that waits for its domain's warm-up.
pub const WARMUP: &str = "warmup";

impl Hold {
    const QUIET_HOURS: &str = "quiet_hours";
    /// The reasons on deferred mail that has not been tried: what holds it is ours, not a receiver's answer.
    pub const REASONS: [&str; 3] = [SkipReason::FrequencyCap.as_str(), Self::QUIET_HOURS, WARMUP];

    /// The reason on the send.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::FrequencyCap | Self::MoreUrgent { .. } => SkipReason::FrequencyCap.as_str(),
            Self::QuietHours { .. } => Self::QUIET_HOURS,
        }
    }
}

/// The eligibility in a row about a batch. Each statement has a row type of its own; this is the one list of their columns.
macro_rules! batch_eligibility {
    ($row:ident) => {
        $crate::gate::BatchEligibility {
            campaign: $row.campaign_status,
            paused: $row.paused,
            missed: $row.missed,
            tenant_active: $row.tenant_active,
            tenant_paused: $row.tenant_paused,
            sender_active: $row.sender_active,
            domain: $row.domain_status,
            quiet: $crate::gate::QuietRule::of(
                ($row.quiet_from, $row.quiet_to),
                $row.quiet_for.as_deref(),
                &$row.timezone,
                ($row.kind, $row.classification),
            ),
        }
    };
}
pub(crate) use batch_eligibility;

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

/// The decision for one send. A contact that cannot be found, or was erased, is not mailed. What ends an enrollment comes before its mail that
/// waits.
#[must_use]
pub fn decide_send(
    batch: Option<&BatchEligibility>,
    contact: Option<&RecipientEligibility>,
    (kind, classification): (MessageKind, Classification),
    send: SendFacts,
    now: DateTime<Utc>,
) -> GateDecision {
    let Some(batch) = batch else { return GateDecision::Paused };
    match batch.decide() {
        GateDecision::Pass => {}
        stopped => return stopped,
    }
    let Some(contact) = contact else { return GateDecision::Skip(SkipReason::ContactArchived) };
    let contact = &contact.about_topic(send.has_left_topic);
    match decide_recipient(contact, kind, classification) {
        Some(reason) if reason != SkipReason::FrequencyCap || kind != MessageKind::Sequence => {
            GateDecision::Skip(reason)
        }
        _ if send.has_exited => GateDecision::Skip(SkipReason::EnrollmentExited),
        Some(_) => GateDecision::Wait(Hold::FrequencyCap),
        None => {
            let hold = decide_hold(contact, batch.quiet, (kind, classification), send.more_urgent, now);
            hold.map_or(GateDecision::Pass, GateDecision::Wait)
        }
    }
}

/// The decision for a mail that asks its recipient to confirm the consent, once nothing else is against it: nobody is asked who has answered,
/// left or been suppressed for marketing meanwhile.
pub(crate) fn decide_confirmation(contact: &RecipientEligibility) -> GateDecision {
    match decide_recipient(contact, MessageKind::Transactional, Classification::Marketing) {
        Some(SkipReason::NoConsent) => GateDecision::Pass,
        Some(reason) => GateDecision::Skip(reason),
        None => GateDecision::Cancel,
    }
}

/// What a mail waits for that its recipient may get, with the time when it is decided again. `more_urgent`: as in [`SendFacts`].
#[must_use]
pub fn decide_hold(
    contact: &RecipientEligibility,
    quiet: Option<QuietRule>,
    (kind, classification): (MessageKind, Classification),
    more_urgent: i64,
    now: DateTime<Utc>,
) -> Option<Hold> {
    let quiet = quiet.and_then(|rule| rule.until(contact.zone, now)).map(|until| Hold::QuietHours { until });
    let yields = is_capped(kind, classification) && is_spoken_for(contact.cap_left, more_urgent);
    quiet.or_else(|| yields.then(|| Hold::MoreUrgent { until: now + YIELD_WAIT }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::NaiveTime;
    use chrono_tz::Tz;
    use rstest::rstest;

    const OPEN: BatchEligibility = BatchEligibility {
        campaign: Some(CampaignStatus::Sending),
        paused: false,
        missed: None,
        tenant_active: true,
        tenant_paused: false,
        sender_active: true,
        domain: DomainStatus::Verified,
        quiet: None,
    };

    const SEND: SendFacts = SendFacts { more_urgent: 0, has_left_topic: false, has_exited: false };
    const CAMPAIGN: (MessageKind, Classification) = (MessageKind::Campaign, Classification::Marketing);
    const RECEIPT: (MessageKind, Classification) = (MessageKind::Transactional, Classification::Transactional);

    /// Put off, because the room is spoken for.
    const YIELDS: GateDecision =
        GateDecision::Wait(Hold::MoreUrgent { until: DateTime::from_timestamp_nanos(NOON_NANOS + 300_000_000_000) });

    const NOON_NANOS: i64 = 1_782_907_200_000_000_000;

    /// Noon, UTC.
    const NOON: DateTime<Utc> = DateTime::from_timestamp_nanos(NOON_NANOS);

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
        assert_eq!(decide_send(Some(&batch), Some(&RecipientEligibility::CLEAN), CAMPAIGN, SEND, NOON), expected);
    }

    #[test]
    fn a_batch_that_may_send_still_asks_the_recipients_gate() {
        let left = RecipientEligibility { unsubscribed: true, ..RecipientEligibility::CLEAN };
        assert_eq!(
            decide_send(Some(&OPEN), Some(&left), CAMPAIGN, SEND, NOON),
            GateDecision::Skip(SkipReason::Unsubscribed)
        );
        assert_eq!(decide_send(Some(&OPEN), Some(&left), RECEIPT, SEND, NOON), GateDecision::Pass);
        let of_topic = SendFacts { has_left_topic: true, ..SEND };
        assert_eq!(
            decide_send(Some(&OPEN), Some(&RecipientEligibility::CLEAN), CAMPAIGN, of_topic, NOON),
            GateDecision::Skip(SkipReason::Unsubscribed)
        );
    }

    #[test]
    fn above_the_cap_a_campaign_skips_and_a_sequence_waits() {
        let full = RecipientEligibility { cap_left: Some(0), ..RecipientEligibility::CLEAN };
        let decided = |kind| decide_send(Some(&OPEN), Some(&full), (kind, Classification::Marketing), SEND, NOON);
        assert_eq!(decided(MessageKind::Campaign), GateDecision::Skip(SkipReason::FrequencyCap));
        assert_eq!(decided(MessageKind::Sequence), GateDecision::Wait(Hold::FrequencyCap));
    }

    #[rstest]
    #[case::room_for_both(MessageKind::Campaign, Classification::Marketing, 2, 1, GateDecision::Pass)]
    #[case::the_last_room(MessageKind::Campaign, Classification::Marketing, 1, 1, YIELDS)]
    #[case::step(MessageKind::Sequence, Classification::Marketing, 1, 1, YIELDS)]
    #[case::no_room(
        MessageKind::Campaign,
        Classification::Marketing,
        0,
        1,
        GateDecision::Skip(SkipReason::FrequencyCap)
    )]
    #[case::step_without_room(
        MessageKind::Sequence,
        Classification::Marketing,
        0,
        1,
        GateDecision::Wait(Hold::FrequencyCap)
    )]
    #[case::notice_to_many(MessageKind::Campaign, Classification::Operational, 1, 1, GateDecision::Pass)]
    #[case::one_off(MessageKind::OneOff, Classification::Marketing, 1, 1, GateDecision::Pass)]
    fn capped_mail_waits_while_more_urgent_mail_needs_the_room(
        #[case] kind: MessageKind,
        #[case] classification: Classification,
        #[case] left: i64,
        #[case] more_urgent: i64,
        #[case] expected: GateDecision,
    ) {
        let contact = RecipientEligibility { cap_left: Some(left), ..RecipientEligibility::CLEAN };
        let send = SendFacts { more_urgent, ..SEND };
        let decide = |contact| decide_send(Some(&OPEN), Some(contact), (kind, classification), send, NOON);
        assert_eq!(decide(&contact), expected);
        // What stops the mail for good goes first; without a cap there is nothing to wait for.
        let gone = RecipientEligibility { hard_bounced: true, ..contact };
        assert_eq!(decide(&gone), GateDecision::Skip(SkipReason::HardBounced));
        assert_eq!(decide(&RecipientEligibility::CLEAN), GateDecision::Pass);
    }

    #[rstest]
    #[case::it_would_pass(RecipientEligibility::CLEAN, SkipReason::EnrollmentExited)]
    #[case::it_waits(RecipientEligibility { cap_left: Some(0), ..RecipientEligibility::CLEAN }, SkipReason::EnrollmentExited)]
    #[case::the_contact_left(RecipientEligibility { unsubscribed: true, ..RecipientEligibility::CLEAN }, SkipReason::Unsubscribed)]
    fn mail_of_an_enrollment_that_has_exited_is_withheld(
        #[case] contact: RecipientEligibility,
        #[case] reason: SkipReason,
    ) {
        let mail = (MessageKind::Sequence, Classification::Marketing);
        let send = SendFacts { has_exited: true, ..SEND };
        assert_eq!(decide_send(Some(&OPEN), Some(&contact), mail, send, NOON), GateDecision::Skip(reason));
        let paused = BatchEligibility { tenant_paused: true, ..OPEN };
        assert_eq!(decide_send(Some(&paused), Some(&contact), mail, send, NOON), GateDecision::TenantPaused);
    }

    /// Quiet from 21:00 to 08:00, in Berlin unless the contact's zone counts.
    fn quiet(words: &[&str], kind: MessageKind, classification: Classification) -> Option<QuietRule> {
        let hours = (NaiveTime::from_hms_opt(21, 0, 0), NaiveTime::from_hms_opt(8, 0, 0));
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        QuietRule::of(hours, Some(&words), "Europe/Berlin", (kind, classification))
    }

    #[rstest]
    #[case::awake(None, None)]
    #[case::contact_asleep(Some(chrono_tz::Pacific::Auckland), Some("2026-07-01T20:00:00Z"))]
    #[case::contact_awake(Some(chrono_tz::America::New_York), None)]
    fn mail_waits_for_the_end_of_quiet_hours(#[case] zone: Option<Tz>, #[case] until: Option<&str>) {
        let batch = BatchEligibility { quiet: quiet(&["marketing"], CAMPAIGN.0, CAMPAIGN.1), ..OPEN };
        let contact = RecipientEligibility { zone, ..RecipientEligibility::CLEAN };
        let hold = |until: &str| GateDecision::Wait(Hold::QuietHours { until: until.parse().unwrap() });
        let expected = until.map_or(GateDecision::Pass, hold);
        assert_eq!(decide_send(Some(&batch), Some(&contact), CAMPAIGN, SEND, NOON), expected);
        // What stops the mail for good goes first, and so does a pause.
        let gone = RecipientEligibility { complained: true, ..contact };
        assert_eq!(
            decide_send(Some(&batch), Some(&gone), CAMPAIGN, SEND, NOON),
            GateDecision::Skip(SkipReason::Complained)
        );
        let paused = BatchEligibility { paused: true, ..batch };
        assert_eq!(decide_send(Some(&paused), Some(&contact), CAMPAIGN, SEND, NOON), GateDecision::Paused);
    }

    #[rstest]
    #[case::campaign(&["marketing"], MessageKind::Campaign, Classification::Marketing, true)]
    #[case::step(&["marketing"], MessageKind::Sequence, Classification::Marketing, true)]
    #[case::notice(&["marketing"], MessageKind::Campaign, Classification::Operational, false)]
    #[case::receipt(&["marketing"], MessageKind::Transactional, Classification::Transactional, false)]
    #[case::receipt_too(&["marketing", "transactional"], MessageKind::Transactional, Classification::Transactional, true)]
    #[case::one_off(&["marketing", "operational"], MessageKind::OneOff, Classification::Operational, false)]
    #[case::test(&["marketing"], MessageKind::Test, Classification::Marketing, false)]
    fn quiet_hours_hold_for_the_mail_they_name_and_no_direct_mail(
        #[case] words: &[&str],
        #[case] kind: MessageKind,
        #[case] classification: Classification,
        #[case] holds: bool,
    ) {
        assert_eq!(quiet(words, kind, classification).is_some(), holds);
    }

    #[test]
    fn a_missing_contact_is_not_mailed() {
        assert_eq!(
            decide_send(Some(&OPEN), None, RECEIPT, SEND, NOON),
            GateDecision::Skip(SkipReason::ContactArchived)
        );
        assert_eq!(decide_send(None, Some(&RecipientEligibility::CLEAN), RECEIPT, SEND, NOON), GateDecision::Paused);
    }
}
