//! The gates, each as one pure decision over a row.

use chrono::{DateTime, Days, NaiveTime, Utc};
use ledger::frequency::{CapUsage, is_spoken_for};
use ledger::gate::{MarketingStatus, QuietRule, RecipientEligibility, decide_recipient, zone_named};
use ledger::quota::QuotaRemaining;
use ledger::warmup::WarmupState;
use schemars::JsonSchema;
use schemas::{CampaignStatus, Classification, EnrollmentStatus, MessageKind, OnMiss, SendState, SequenceStatus};
use serde::Serialize;
use uuid::Uuid;

use super::store::{ContactRow, ExplainedSender, HeldBatch, OccurrenceRow, SuppressionRow};
use crate::{
    api::{
        campaigns::rows::CampaignRow, enrollments::store::EnrollmentRow, sends::SendRow, sequences::store::SequenceRow,
    },
    pipeline::page::OptionalTime,
};

/// The gates, in the order the engine passes them.
pub(super) const GATES: [&str; 17] = [
    "trigger",
    "audience",
    "contact",
    "suppression",
    "consent",
    "frequency",
    "quiet_hours",
    "tenant",
    "sender",
    "domain",
    "quota",
    "warmup",
    "pace",
    "window",
    "campaign",
    "message",
    "sequence",
];

/// What a gate decides: now, or for a later time when the mail is due then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "GateDecision")]
pub(super) enum Decision {
    /// Nothing here speaks against the mail.
    Pass,
    /// No mail.
    Stop,
    /// Not now.
    Wait,
}

/// The row that decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct GateRow {
    kind: &'static str,
    id: Uuid,
}

/// One gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct Gate {
    #[schemars(extend("enum" = GATES))]
    pub(super) gate: &'static str,
    #[serde(rename = "verdict")]
    pub(super) decision: Decision,
    /// A state, a reason, a number.
    detail: String,
    row: Option<GateRow>,
    /// Since when; for the quota and for what waits, until when.
    at: OptionalTime,
}

impl Gate {
    fn new(gate: &'static str, decision: Decision, detail: impl Into<String>) -> Self {
        Self { gate, decision, detail: detail.into(), row: None, at: None.into() }
    }

    fn row(self, kind: &'static str, id: Uuid, at: impl Into<OptionalTime>) -> Self {
        Self { row: Some(GateRow { kind, id }), at: at.into(), ..self }
    }
}

fn stop_if(stops: bool) -> Decision {
    if stops { Decision::Stop } else { Decision::Pass }
}

/// No contact has this address.
pub(super) fn no_contact() -> Gate {
    Gate::new("audience", Decision::Stop, "no_contact")
}

/// Whether the contact is in the campaign's audience: as it was looked up, or as it would be now.
pub(super) fn audience(row: &CampaignRow, is_member: bool, is_looked_up: bool) -> Gate {
    let detail = match (is_member, is_looked_up) {
        (true, true) => "was_in_the_audience",
        (true, false) => "is_in_the_audience",
        (false, true) => "was_not_in_the_audience",
        (false, false) => "is_not_in_the_audience",
    };
    let gate = Gate::new("audience", stop_if(!is_member), detail);
    let at = row.launched_at.filter(|_| is_looked_up);
    match (row.audience_mode.as_str(), row.list_id, row.segment_id, row.tag_ids.first()) {
        ("list", Some(list), _, _) => gate.row("list", list, at),
        ("segment", _, Some(segment), _) => gate.row("segment", segment, at),
        ("tags", _, _, Some(tag)) => gate.row("tag", *tag, at),
        _ => gate,
    }
}

/// Whether a one-off message was for the contact, and it was not blocked then.
pub(super) fn recipient(message: Uuid, is_recipient: bool, at: DateTime<Utc>) -> Gate {
    let detail = if is_recipient { "is_recipient" } else { "is_not_recipient_or_was_blocked" };
    Gate::new("audience", stop_if(!is_recipient), detail).row("message", message, Some(at))
}

/// What became of the newest occurrence of a sequence's trigger for the contact. One that started nothing says why, and stops the contact unless
/// it is on its way all the same, or was enrolled since.
pub(super) fn trigger(row: &OccurrenceRow, enrollment: Option<&EnrollmentRow>) -> Gate {
    let is_enrolled = enrollment.is_some_and(|enrollment| {
        matches!(enrollment.status, EnrollmentStatus::Active | EnrollmentStatus::Paused)
            || *enrollment.created_at > row.noted_at
    });
    let (decision, detail) = match row.outcome.as_deref() {
        None => (Decision::Wait, "is_not_decided".to_owned()),
        Some("enrolled") => (Decision::Pass, "enrolled".to_owned()),
        Some(reason) => (stop_if(!is_enrolled), format!("not_started_{reason}")),
    };
    Gate { at: Some(row.noted_at).into(), ..Gate::new("trigger", decision, detail) }
}

/// Whether the contact is on its way through a sequence: its newest enrollment says so, and since when.
pub(super) fn enrollment(row: Option<&EnrollmentRow>) -> Gate {
    let Some(row) = row else { return Gate::new("audience", Decision::Stop, "is_not_enrolled") };
    let (decision, detail) = match (row.status, row.exit_reason) {
        // What it is paused for, the gates of the sequence and the tenant say.
        (EnrollmentStatus::Active | EnrollmentStatus::Paused, _) => (Decision::Pass, "is_enrolled".to_owned()),
        (EnrollmentStatus::Completed, _) => (Decision::Stop, "completed".to_owned()),
        (EnrollmentStatus::Exited | EnrollmentStatus::Failed, reason) => {
            (Decision::Stop, reason.map_or_else(|| row.status.to_string(), |reason| format!("{}_{reason}", row.status)))
        }
    };
    Gate::new("audience", decision, detail).row("enrollment", row.id, row.ended_at.or(Some(*row.created_at)))
}

/// Whether a sequence is active.
pub(super) fn sequence(row: &SequenceRow) -> Gate {
    let decision = match row.status {
        SequenceStatus::Active => Decision::Pass,
        SequenceStatus::Draft | SequenceStatus::Paused => Decision::Wait,
        SequenceStatus::Archived => Decision::Stop,
    };
    Gate::new("sequence", decision, row.status.as_str()).row("sequence", row.id, Some(*row.updated_at))
}

/// Whether the contact is active, where that counts: one that is archived gets no marketing and no campaign.
pub(super) fn contact(row: &ContactRow, kind: MessageKind, classification: Classification) -> Gate {
    let eligibility = RecipientEligibility { contact_active: row.status == "active", ..RecipientEligibility::CLEAN };
    let stops = decide_recipient(&eligibility, kind, classification).is_some();
    Gate::new("contact", stop_if(stops), row.status.clone()).row("contact", row.id, Some(row.updated_at))
}

/// One gate for each live suppression, or one that says that there is none. A magic recipient of the sandbox has no row.
pub(super) fn suppressions(rows: &[SuppressionRow], by_name: bool, classification: Classification) -> Vec<Gate> {
    let gate = |row: &SuppressionRow| {
        let binds = row.scope == "all" || classification == Classification::Marketing;
        Gate::new("suppression", stop_if(binds), row.reason.clone()).row("suppression", row.id, Some(row.created_at))
    };
    let mut gates: Vec<Gate> = rows.iter().map(gate).collect();
    if by_name {
        gates.push(Gate::new("suppression", Decision::Stop, "sandbox_recipient"));
    }
    if gates.is_empty() {
        gates.push(Gate::new("suppression", Decision::Pass, "none"));
    }
    gates
}

/// Whether the contact agreed to marketing, where that counts, and has not left the campaign's topic. The mail of a sequence waits for the
/// consent that the contact is asked to confirm. `left_topic`: the list, and since when.
pub(super) fn consent(
    row: &ContactRow,
    left_topic: Option<(Uuid, DateTime<Utc>)>,
    kind: MessageKind,
    classification: Classification,
) -> Gate {
    let marketing = MarketingStatus::from_column(&row.marketing_status);
    let stops = |unsubscribed| {
        let eligibility = RecipientEligibility { marketing, unsubscribed, ..RecipientEligibility::CLEAN };
        decide_recipient(&eligibility, kind, classification).is_some()
    };
    if let Some((list, left_at)) = left_topic.filter(|_| !stops(false) && stops(true)) {
        return Gate::new("consent", Decision::Stop, "left_topic").row("list", list, Some(left_at));
    }
    let detail = match row.confirmation.as_deref() {
        Some("pending") => "waits_for_confirmation",
        Some("expired") if marketing == MarketingStatus::Pending => "confirmation_expired",
        _ => &row.marketing_status,
    };
    let waits = kind == MessageKind::Sequence && row.is_waited_for;
    let decision = if stops(false) && waits { Decision::Wait } else { stop_if(stops(false)) };
    Gate::new("consent", decision, detail).row("contact", row.id, row.consent_at)
}

/// How many mails are left, or the word for none.
fn number_left(left: i64, none: &str) -> String {
    if left == 0 { none.to_owned() } else { left.to_string() }
}

/// Whether the frequency cap, if the mail has one, leaves room for it when it is due: a campaign skips a contact without room, a sequence
/// waits for it. Both wait while running campaigns owe the contact so many mails that are more urgent.
pub(super) fn frequency(usage: Option<&CapUsage>, kind: MessageKind, more_urgent: i64, due_at: DateTime<Utc>) -> Gate {
    let Some(usage) = usage else { return Gate::new("frequency", Decision::Pass, "unlimited") };
    if usage.opens_at.is_some_and(|at| at <= due_at) {
        return Gate { at: usage.opens_at.into(), ..Gate::new("frequency", Decision::Pass, "opens_before_it_is_due") };
    }
    let left = usage.left();
    if is_spoken_for(Some(left), more_urgent) {
        return Gate::new("frequency", Decision::Wait, "spoken_for");
    }
    let decision = match (left, kind) {
        (0, MessageKind::Sequence) => Decision::Wait,
        (left, _) => stop_if(left == 0),
    };
    Gate { at: usage.opens_at.into(), ..Gate::new("frequency", decision, number_left(left, "cap_is_reached")) }
}

/// Whether it is quiet where the contact is when the mail is due: it then waits until it is not.
pub(super) fn quiet_hours(rule: Option<(QuietRule, bool)>, timezone: Option<&str>, due_at: DateTime<Utc>) -> Gate {
    let Some((rule, by_contact)) = rule else { return Gate::new("quiet_hours", Decision::Pass, "none") };
    match rule.until(zone_named(timezone.filter(|_| by_contact)), due_at) {
        Some(until) => Gate { at: Some(until).into(), ..Gate::new("quiet_hours", Decision::Wait, "quiet") },
        None => Gate::new("quiet_hours", Decision::Pass, "open"),
    }
}

/// Whether the tenant may send.
pub(super) fn tenant(id: Uuid, row: &ExplainedSender) -> Gate {
    let gate = match (row.tenant_status.as_str(), row.tenant_paused_at) {
        ("active", Some(_)) => Gate::new("tenant", Decision::Wait, "paused"),
        (status, _) => Gate::new("tenant", stop_if(status != "active"), status),
    };
    gate.row("tenant", id, row.tenant_paused_at)
}

/// Whether the sender may.
pub(super) fn sender(id: Uuid, row: &ExplainedSender) -> Gate {
    Gate::new("sender", stop_if(row.status != "active"), row.status.clone()).row("sender", id, Some(row.updated_at))
}

/// Whether its domain may.
pub(super) fn domain(row: &ExplainedSender) -> Gate {
    let decision = stop_if(!row.domain_status.may_send());
    Gate::new("domain", decision, row.domain_status.as_str()).row("domain", row.domain_id, row.verified_at)
}

/// The send quota: stops mail of this kind when nothing is left.
pub(super) fn quota(left: &QuotaRemaining, kind: MessageKind) -> Gate {
    let detail = left.remaining.map_or_else(|| "unlimited".to_owned(), |left| number_left(left, "quota_is_used_up"));
    let stops = left.remaining == Some(0) && ledger::quota::stops(kind);
    Gate { at: Some(left.resets_at).into(), ..Gate::new("quota", stop_if(stops), detail) }
}

/// Whether the sender's domain is being warmed up, and today's cap is reached: a campaign's mail of today then waits for the next day.
pub(super) fn warmup(domain: Uuid, state: Option<&WarmupState>, due_at: DateTime<Utc>) -> Gate {
    let tomorrow = |state: &WarmupState| {
        state.today.checked_add_days(Days::new(1)).map(|day| day.and_time(NaiveTime::MIN).and_utc())
    };
    let (decision, detail, at) = match state.map(|state| (state, state.remaining())) {
        Some((state, Some(0))) if tomorrow(state).is_none_or(|at| due_at < at) => {
            (Decision::Wait, "day_is_full".to_owned(), tomorrow(state))
        }
        Some((state, Some(left))) => (Decision::Pass, left.to_string(), tomorrow(state)),
        Some((_, None)) | None => (Decision::Pass, "none".to_owned(), None),
    };
    Gate::new("warmup", decision, detail).row("domain", domain, at)
}

/// Whether the mail waits with its batch, for its time, for the winner of an A/B test or set aside, or is put off, for whatever reason.
pub(super) fn pace(send: Option<&SendRow>, batch: Option<HeldBatch>, is_slowed: bool) -> Gate {
    if let Some(HeldBatch { reason, until }) = batch {
        return Gate { at: until.into(), ..Gate::new("pace", Decision::Wait, reason) };
    }
    match send.filter(|send| send.state == SendState::Deferred) {
        Some(send) => {
            let reason = send.failure_reason.as_deref().unwrap_or(SendState::Deferred.as_str());
            Gate { at: send.next_attempt_at, ..Gate::new("pace", Decision::Wait, reason) }
        }
        None => Gate::new("pace", Decision::Pass, if is_slowed { "slowed" } else { "free" }),
    }
}

/// Whether the campaign's window is open, and still is when the mail is due and has waited for what these gates wait for.
pub(super) fn window(row: &CampaignRow, due_at: DateTime<Utc>, gates: &[Gate]) -> Gate {
    // A draft has not decided yet; from the launch on `closes_at` counts, which a resumption may have lifted.
    let closes_at = if row.status == CampaignStatus::Draft { *row.not_after } else { row.closes_at };
    let waits = gates.iter().filter(|gate| gate.decision == Decision::Wait).filter_map(|gate| *gate.at);
    let leaves_at = waits.fold(due_at, Ord::max);
    let is_closed_by = |time: DateTime<Utc>| closes_at.is_some_and(|at| at <= time);
    let missed = if is_closed_by(Utc::now()) { "window_missed" } else { "closes_before_the_mail_leaves" };
    let (decision, detail) = match (is_closed_by(leaves_at), row.on_miss) {
        (true, OnMiss::Skip) => (Decision::Stop, missed),
        (true, OnMiss::Hold) => (Decision::Wait, missed),
        (true, OnMiss::Send) => (Decision::Pass, "late"),
        (false, _) => (Decision::Pass, "open"),
    };
    Gate::new("window", decision, detail).row("campaign", row.id, row.not_after)
}

/// Whether the campaign is being sent.
pub(super) fn campaign(row: &CampaignRow) -> Gate {
    let (decision, detail) = match row.status {
        CampaignStatus::Cancelled => (Decision::Stop, "cancelled".to_owned()),
        _ if row.paused => {
            (Decision::Wait, row.pause_reason.map_or_else(|| "paused".to_owned(), |reason| format!("paused_{reason}")))
        }
        CampaignStatus::Draft | CampaignStatus::Preflight | CampaignStatus::Scheduled => {
            (Decision::Wait, row.status.to_string())
        }
        CampaignStatus::Sending | CampaignStatus::Sent => (Decision::Pass, row.status.to_string()),
    };
    // A cancel and a pause are its newest change; its own time says nothing of them.
    let is_stopped = row.status == CampaignStatus::Cancelled || row.paused;
    let at = if is_stopped { Some(*row.updated_at) } else { row.scheduled_for.or(*row.launched_at) };
    Gate::new("campaign", decision, detail).row("campaign", row.id, at)
}

/// Whether a one-off message or a transactional mail is due, and neither cancelled nor rejected.
pub(super) fn message(
    kind: &'static str,
    id: Uuid,
    due_at: DateTime<Utc>,
    rejected: Option<&str>,
    now: DateTime<Utc>,
) -> Gate {
    let (decision, detail) = match rejected {
        Some(reason) => (Decision::Stop, reason),
        None if due_at > now => (Decision::Wait, "scheduled"),
        None => (Decision::Pass, "due"),
    };
    Gate::new("message", decision, detail).row(kind, id, Some(due_at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn suppression(reason: &str, scope: &str) -> SuppressionRow {
        SuppressionRow { id: Uuid::nil(), reason: reason.to_owned(), scope: scope.to_owned(), created_at: Utc::now() }
    }

    #[rstest]
    #[case("hard_bounce", "all", Classification::Operational, Decision::Stop)]
    #[case("manual", "marketing", Classification::Marketing, Decision::Stop)]
    #[case("manual", "marketing", Classification::Transactional, Decision::Pass)]
    #[case("unsubscribe", "marketing", Classification::Operational, Decision::Pass)]
    fn a_suppression_speaks_as_the_compliance_gate_does(
        #[case] reason: &str,
        #[case] scope: &str,
        #[case] classification: Classification,
        #[case] decision: Decision,
    ) {
        let gates = suppressions(&[suppression(reason, scope)], false, classification);
        assert_eq!((gates.len(), gates[0].decision, gates[0].detail.as_str()), (1, decision, reason));
    }

    #[test]
    fn a_magic_recipient_is_suppressed_beside_other_rows() {
        for rows in [vec![], vec![suppression("manual", "marketing")]] {
            let gates = suppressions(&rows, true, Classification::Transactional);
            assert!(gates.iter().any(|gate| gate.decision == Decision::Stop && gate.detail == "sandbox_recipient"));
        }
    }

    #[rstest]
    #[case::room(1, MessageKind::Campaign, 0, Decision::Pass, "1")]
    #[case::spoken_for(1, MessageKind::Campaign, 1, Decision::Wait, "spoken_for")]
    #[case::campaign(2, MessageKind::Campaign, 1, Decision::Stop, "cap_is_reached")]
    #[case::step(3, MessageKind::Sequence, 0, Decision::Wait, "cap_is_reached")]
    fn above_the_cap_a_campaign_stops_and_a_sequence_waits(
        #[case] used: i64,
        #[case] kind: MessageKind,
        #[case] more_urgent: i64,
        #[case] decision: Decision,
        #[case] detail: &str,
    ) {
        let usage = CapUsage { messages: 2, used, opens_at: None };
        let gate = frequency(Some(&usage), kind, more_urgent, Utc::now());
        assert_eq!((gate.decision, gate.detail.as_str()), (decision, detail));
        assert_eq!(frequency(None, kind, more_urgent, Utc::now()).decision, Decision::Pass);
    }

    #[rstest]
    #[case::step_that_waits(MessageKind::Sequence, true, Decision::Wait)]
    #[case::step_that_does_not(MessageKind::Sequence, false, Decision::Stop)]
    #[case::campaign(MessageKind::Campaign, true, Decision::Stop)]
    fn only_a_sequence_waits_for_a_confirmation(
        #[case] kind: MessageKind,
        #[case] is_waited_for: bool,
        #[case] decision: Decision,
    ) {
        let contact = ContactRow {
            id: Uuid::nil(),
            status: "active".to_owned(),
            marketing_status: "pending".to_owned(),
            consent_at: None,
            timezone: None,
            updated_at: Utc::now(),
            confirmation: Some("pending".to_owned()),
            is_waited_for,
            suppressed_by_name: false,
        };
        let gate = consent(&contact, None, kind, Classification::Marketing);
        assert_eq!((gate.decision, gate.detail.as_str()), (decision, "waits_for_confirmation"));
    }

    #[test]
    fn the_remainder_of_a_test_waits_for_the_winner() {
        let gate = pace(None, Some(HeldBatch { reason: "held_for_winner".into(), until: None }), false);
        assert_eq!((gate.decision, gate.detail.as_str()), (Decision::Wait, "held_for_winner"));
    }

    /// A domain of which ten mails may go today, and so many have gone.
    fn warmed_up(used: i64) -> WarmupState {
        WarmupState {
            tenant_id: Uuid::nil(),
            domain_id: Uuid::nil(),
            is_on: true,
            caps: Some(vec![10]),
            days_before: 0,
            used,
            today: Utc::now().date_naive(),
        }
    }

    #[rstest]
    #[case::cap_reached(10, Decision::Wait, "day_is_full")]
    #[case::some_left(7, Decision::Pass, "3")]
    fn a_domain_that_is_warmed_up_waits_when_the_day_is_full(
        #[case] used: i64,
        #[case] decision: Decision,
        #[case] detail: &str,
    ) {
        let state = warmed_up(used);
        let gate = warmup(Uuid::nil(), Some(&state), Utc::now());
        assert_eq!((gate.decision, gate.detail.as_str()), (decision, detail));
        assert!(gate.at.is_some_and(|at| at > Utc::now()));
        assert_eq!(warmup(Uuid::nil(), None, Utc::now()).decision, Decision::Pass);
    }

    #[test]
    fn later_mail_does_not_wait_for_what_is_over_by_then() {
        let now = Utc::now();
        let usage = CapUsage { messages: 1, used: 1, opens_at: Some(now + Days::new(1)) };
        let state = warmed_up(10);
        let decided = |due_at| {
            let capped = frequency(Some(&usage), MessageKind::Campaign, 0, due_at);
            (capped.decision, warmup(Uuid::nil(), Some(&state), due_at).decision)
        };
        assert_eq!(decided(now), (Decision::Stop, Decision::Wait));
        assert_eq!(decided(now + Days::new(2)), (Decision::Pass, Decision::Pass));
    }
}
