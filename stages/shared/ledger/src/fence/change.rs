//! Changes: the delivery stage asks the ledger to move one send from one state to another.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, NaiveDate, Utc};
use schemas::{Classification, Lane, MessageKind, SendId, SendState, SkipReason};
use uuid::Uuid;

use crate::gate::{GateDecision, Hold, is_capped};
use crate::warmup::{DomainKey, WarmupPermit};

/// The answer of a server or provider, as the ledger stores it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// The SMTP code.
    pub code: Option<i16>,
    /// The enhanced status code.
    pub enhanced: Option<String>,
    /// At most [`Answer::TEXT_MAX`] characters.
    pub text: Option<String>,
}

impl Answer {
    /// The most characters kept.
    pub const TEXT_MAX: usize = 500;

    /// An answer without a code.
    #[must_use]
    pub fn text(text: &str) -> Self {
        let kept: String = text.chars().filter(|c| *c != '\0').take(Self::TEXT_MAX).collect();
        Self { text: Some(kept).filter(|kept| !kept.is_empty()), ..Self::default() }
    }
}

/// The facts about a batch that are read with its owed sends.
#[derive(Debug)]
pub struct BatchContext {
    pub tenant_id: Uuid,
    pub batch_id: Uuid,
    /// The partition of its sends.
    pub month: NaiveDate,
    pub kind: MessageKind,
    pub lane: Lane,
    pub classification: Classification,
    /// True for the sandbox: the capture provider takes the mail, nothing leaves.
    pub sandbox: bool,
    /// Its sending domain, while that is in warm-up.
    pub warming: Option<Uuid>,
    /// True if the tenant has more than one provider route.
    pub has_fallback: bool,
    pub created_at: DateTime<Utc>,
    /// How long the tenant's quiet hours are, if they hold for it: it may have waited through them.
    pub quiet_length: Duration,
}

impl BatchContext {
    /// How old it is, for the retry deadline: without the quiet hours that it may have waited through.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.age_at(Utc::now())
    }

    /// How old it is at this time, as [`Self::age`]: of a day that is over its quiet hours are left out, of the one that has begun as much of
    /// them as there is. Of the first days only: quiet hours of almost a day would keep mail for months.
    #[must_use]
    pub fn age_at(&self, at: DateTime<Utc>) -> Duration {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        const DAYS_MAX: u64 = 3;
        let age = (at - self.created_at).to_std().unwrap_or_default();
        let days = u32::try_from((age.as_secs() / DAY.as_secs()).min(DAYS_MAX)).unwrap_or_default();
        let loud = DAY.saturating_sub(self.quiet_length);
        loud * days + (age - DAY * days).saturating_sub(self.quiet_length)
    }
}

/// What mail becomes whose first attempt may have arrived, whatever ends the second one.
pub(crate) const IN_DOUBT: (SendState, &str) = (SendState::Unknown, "no_answer");

/// True if mail with an unknown outcome gets one more attempt, with the same bytes and Message-ID. Campaigns and marketing never do: they
/// stay unknown (README, promise 4). Neither does mail of a tenant with more than one provider route: another provider than the first
/// attempt's cannot recognise the mail.
pub fn is_tried_again(kind: MessageKind, classification: Classification, has_fallback: bool) -> bool {
    kind != MessageKind::Campaign && classification != Classification::Marketing && !has_fallback
}

/// An attempt at a send that is owed, as a worker has read it. Nothing holds the send: of several workers with it, one passes the fence.
#[derive(Debug, Clone)]
pub struct SendAttempt {
    /// The send.
    pub id: Uuid,
    /// The recipient.
    pub contact_id: Uuid,
    /// The token of its fence: proves that a result is of this attempt.
    pub token: Uuid,
    /// `Queued`, `Deferred` and due, or `Fenced` once it has passed the fence.
    pub state: SendState,
    /// Which attempt this is, from 1.
    pub attempt: i16,
    /// How often its outcome was unknown before, and how often it was deferred since: all these attempts repeat the request of the first in
    /// doubt.
    pub doubtful: i16,
    /// The provider route of this attempt; as it was read, that of the last. `None`: the platform's relay.
    pub route: Option<Uuid>,
    /// The kind of this attempt's provider route; `None` until it is chosen.
    pub provider: Option<&'static str>,
    /// The kind of the route of the attempt before, if there was one: it stands if nothing leaves in this one.
    pub provider_before: Option<String>,
    /// The UTC day of its last fence, and of the first the day it counts on against the quota. `None`: it does not count (yet).
    pub metered_on: Option<NaiveDate>,
    /// The fence of this attempt is the one that counts: it is given back if nothing left.
    pub counts: bool,
    /// The time that it waited for, with its batch or alone: its mail is dated by it.
    pub due_at: Option<DateTime<Utc>>,
    /// Its permit under the warm-up cap of its domain.
    pub _permit: Option<Arc<WarmupPermit>>,
    /// Its batch.
    pub batch: Arc<BatchContext>,
}

impl SendAttempt {
    /// Its sending domain, while that is in warm-up.
    pub fn warming(&self) -> Option<DomainKey> {
        self.batch.warming.map(|domain| (self.batch.tenant_id, domain))
    }

    /// When its mail was to leave: when it was made, or the time that it waited for since.
    pub fn wanted_at(&self) -> DateTime<Utc> {
        let made_at = SendId(self.id).made_at();
        self.due_at.map_or(made_at, |due_at| due_at.max(made_at))
    }

    /// A number of its batch: the sends of one batch are deferred to the same time.
    pub fn seed(&self) -> u64 {
        u64::try_from((self.batch.batch_id.as_u128() >> 9) & u128::from(u64::MAX)).unwrap_or(0)
    }

    /// The send after a fence that was committed on this day; `None`: it may or may not have been committed.
    pub fn fenced(self, today: Option<NaiveDate>) -> Self {
        let counts = self.metered_on.is_none();
        Self { state: SendState::Fenced, metered_on: self.metered_on.or(today), counts, ..self }
    }

    /// The kind of provider route that its fence names: the sandbox captures its mail, whatever the route.
    pub(super) fn fenced_for(&self) -> Option<&'static str> {
        if self.batch.sandbox { Some("capture") } else { self.provider }
    }

    /// The attempts the ledger must show; `None` after the fence, which the token proves.
    pub(super) fn tried(&self) -> Option<i16> {
        (self.state != SendState::Fenced).then_some(self.attempt - 1)
    }
}

/// Wait until a batch of a paused tenant is announced again; compliance then sets it aside.
const TENANT_PAUSED_WAIT: Duration = Duration::from_secs(1);

/// How long the mail of a sequence waits before the gate is asked again that found the frequency cap reached.
pub const CAP_WAIT: Duration = Duration::from_secs(60 * 60);

/// When a batch is announced again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NextAnnouncement {
    /// As planned before.
    AsPlanned,
    /// After this time.
    After(Duration),
    /// Not before dispatch: the campaign is paused.
    OnDispatch,
}

/// A captured message, as much of it as is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    pub source: Vec<u8>,
    pub is_cut: bool,
}

impl Captured {
    /// The most octets kept of one message.
    pub const MAX: usize = 256 * 1024;

    fn of(source: &[u8]) -> Self {
        let kept = source.get(..Self::MAX).unwrap_or(source);
        Self { source: kept.to_vec(), is_cut: kept.len() < source.len() }
    }
}

/// One send from one state to another.
#[derive(Debug, Clone)]
pub struct Change {
    /// Which send.
    pub send: SendAttempt,
    /// The state it must be in.
    pub from: SendState,
    /// The state it gets.
    pub to: SendState,
    /// Skip reason or failure class.
    pub reason: Option<&'static str>,
    /// The answer of the server or provider.
    pub answer: Answer,
    /// For `deferred`: until the next attempt.
    pub wait: Option<Duration>,
    /// The attempt did not take place and does not count.
    pub uncounted: bool,
    /// The outcome is unknown.
    pub doubted: bool,
    /// The fact to record.
    pub event: Option<&'static str>,
    /// The address does not exist: suppress it.
    pub suppress: Option<String>,
    /// The provider route of the attempt, if there was one.
    pub provider: Option<&'static str>,
    /// The mail's id with the provider.
    pub provider_message_id: Option<String>,
    /// The copy that the capture provider keeps.
    pub captured: Option<Captured>,
    /// When its batch is announced again.
    pub announce: NextAnnouncement,
    /// A fence that counts against the tenant's frequency cap.
    pub(super) is_capped: bool,
}

impl Change {
    fn new(send: SendAttempt, to: SendState) -> Self {
        Self {
            from: send.state,
            send,
            to,
            reason: None,
            answer: Answer::default(),
            wait: None,
            uncounted: false,
            doubted: false,
            event: None,
            suppress: None,
            provider: None,
            provider_message_id: None,
            captured: None,
            announce: NextAnnouncement::AsPlanned,
            is_capped: false,
        }
    }

    /// The fence is passed.
    pub fn fenced(send: SendAttempt) -> Self {
        Self::new(send, SendState::Fenced)
    }

    /// The server accepted it.
    pub fn sent(send: SendAttempt, answer: Answer) -> Self {
        Self { answer, event: Some("sent"), ..Self::new(send, SendState::Sent) }
    }

    /// The server said "later".
    pub fn deferred(send: SendAttempt, class: &'static str, answer: Answer, wait: Duration) -> Self {
        Self {
            reason: Some(class),
            answer,
            wait: Some(wait),
            event: Some("deferred"),
            ..Self::new(send, SendState::Deferred)
        }
    }

    /// Postponed without an attempt; the next one is due after `wait`. `reason`: `paced`, `warmup` or that of a [`Hold`].
    pub fn waiting(send: SendAttempt, reason: &'static str, wait: Duration) -> Self {
        Self { reason: Some(reason), wait: Some(wait), uncounted: true, ..Self::new(send, SendState::Deferred) }
    }

    /// Permanently refused. `suppress` is the address, when it certainly does not exist. A test suppresses no address.
    pub fn failed(send: SendAttempt, class: &'static str, answer: Answer, suppress: Option<String>) -> Self {
        let suppress = suppress.filter(|_| send.batch.kind != MessageKind::Test);
        Self { reason: Some(class), answer, event: Some("failed"), suppress, ..Self::new(send, SendState::Failed) }
            .or_in_doubt()
    }

    /// Its retry deadline has passed.
    pub fn expired(send: SendAttempt, class: &'static str, answer: Answer) -> Self {
        Self { reason: Some(class), answer, event: Some("expired"), ..Self::new(send, SendState::Expired) }
            .or_in_doubt()
    }

    /// Whether the server accepted it is unknown.
    pub fn unknown(send: SendAttempt, reason: &'static str) -> Self {
        let batch = &send.batch;
        let again = is_tried_again(batch.kind, batch.classification, batch.has_fallback) && send.doubtful == 0;
        let (to, announce) = if again {
            (SendState::Queued, NextAnnouncement::After(Duration::from_secs(5)))
        } else {
            (SendState::Unknown, NextAnnouncement::AsPlanned)
        };
        Self { reason: Some(reason), doubted: true, event: Some("unknown"), announce, ..Self::new(send, to) }
    }

    /// Its outcome was unknown, and it is not tried again: the route of that attempt is no more the one that would take it, or there is
    /// evidence that it has left. It stays unknown.
    pub fn still_unknown(send: SendAttempt) -> Self {
        Self { uncounted: true, ..Self::new(send, SendState::Unknown) }.or_in_doubt()
    }

    /// A send whose first attempt may have arrived was not withheld, whatever becomes of the second one: it stays unknown, and later proof
    /// can still correct it. An address that does not exist is certain.
    fn or_in_doubt(self) -> Self {
        if self.send.doubtful == 0 || self.suppress.is_some() {
            return self;
        }
        let (to, reason) = IN_DOUBT;
        Self { to, reason: Some(reason), event: Some("unknown"), ..self }
    }

    /// Certainly not sent and still owed, and due after `wait`. A fenced send is queued again; one that was queued stays as it is, and its
    /// batch is announced again; one that was deferred is deferred again.
    pub fn released(send: SendAttempt, wait: Duration) -> Self {
        if send.state == SendState::Deferred {
            return Self { wait: Some(wait), uncounted: true, ..Self::new(send, SendState::Deferred) };
        }
        Self { uncounted: true, announce: NextAnnouncement::After(wait), ..Self::new(send, SendState::Queued) }
    }

    /// Withheld on purpose.
    pub fn skipped(send: SendAttempt, reason: SkipReason) -> Self {
        Self {
            reason: Some(reason.as_str()),
            uncounted: true,
            event: Some("skipped"),
            ..Self::new(send, SendState::Skipped)
        }
        .or_in_doubt()
    }

    /// What the decision of the gate at this time makes of it.
    pub(crate) fn decided(send: SendAttempt, decision: GateDecision, now: DateTime<Utc>) -> Self {
        // Stays as it is; its batch is announced at another time.
        let unchanged = |send: SendAttempt, announce| {
            let state = send.state;
            Self { uncounted: true, announce, ..Self::new(send, state) }
        };
        match decision {
            GateDecision::Pass => Self::fenced(send),
            GateDecision::Skip(reason) => Self::skipped(send, reason),
            GateDecision::Cancel => Self { uncounted: true, ..Self::new(send, SendState::Cancelled) }.or_in_doubt(),
            GateDecision::Paused => unchanged(send, NextAnnouncement::OnDispatch),
            // Compliance sets the batch aside: only compliance can make sure that the tenant is not resumed at the same time.
            GateDecision::TenantPaused => unchanged(send, NextAnnouncement::After(TENANT_PAUSED_WAIT)),
            GateDecision::Wait(hold) => {
                let wait = match hold {
                    Hold::FrequencyCap => CAP_WAIT,
                    Hold::QuietHours { until } | Hold::MoreUrgent { until } => {
                        (until - now).to_std().unwrap_or_default()
                    }
                };
                Self::waiting(send, hold.as_str(), wait)
            }
        }
    }

    /// Sets the provider route and the mail's id with the provider.
    pub fn by(self, provider: &'static str, provider_message_id: Option<String>) -> Self {
        Self { provider: Some(provider), provider_message_id, ..self }
    }

    /// Keeps a copy of the message.
    pub fn capturing(self, message: &[u8]) -> Self {
        Self { captured: Some(Captured::of(message)), ..self }
    }

    /// Why it failed or is unknown, for the totals of failures: a class or code from a bounded set.
    pub fn failure(&self) -> Option<&'static str> {
        let failed = matches!(self.to, SendState::Failed | SendState::Expired | SendState::Unknown);
        self.reason.filter(|_| failed)
    }

    /// Whether this uses up quota (a first fence) or gives it back (a first fence after which nothing left). What was tried before counts, and
    /// so does what may have left.
    pub fn metered(&self) -> i64 {
        match (self.from, self.to) {
            (_, SendState::Fenced) if self.send.metered_on.is_none() => 1,
            _ if self.is_taken_back() && self.send.counts => -1,
            _ => 0,
        }
    }

    /// True if it takes a fence back: certainly nothing of the mail has left in this attempt.
    pub(super) fn is_taken_back(&self) -> bool {
        (self.from, self.to) == (SendState::Fenced, SendState::Queued) && !self.doubted
    }

    /// The kind of provider route that the send has had after it; `None`: as before.
    pub(super) fn provider_after(&self) -> Option<&str> {
        if self.is_taken_back() { self.send.provider_before.as_deref() } else { self.provider }
    }

    /// True if a mail that may have counted against a frequency cap certainly has not left.
    pub(super) fn gives_back(&self, from: SendState) -> bool {
        let left = matches!(self.to, SendState::Fenced | SendState::Sent | SendState::Unknown);
        let batch = &self.send.batch;
        is_capped(batch.kind, batch.classification) && !left && matches!(from, SendState::Fenced | SendState::Unknown)
    }

    /// True if the send stays as it is: only its batch's next announcement changes.
    pub fn is_announcement_only(&self) -> bool {
        self.from == self.to && self.wait.is_none()
    }

    /// What it adds to the attempts. A fence counts as one; an attempt that ended before its fence counts here.
    pub(super) fn attempts_added(&self) -> i16 {
        i16::from(self.send.state != SendState::Fenced) - i16::from(self.uncounted)
    }

    /// What it adds to `doubtful`. A deferral after an unknown outcome adds one, so that the next attempt is still the same request: the first
    /// may have been taken. What is resolved is in doubt no more.
    pub(super) fn doubtful_added(&self) -> i16 {
        let repeats = self.to == SendState::Deferred && !self.uncounted && self.send.doubtful > 0;
        i16::from(self.doubted || repeats) - i16::from(self.from == SendState::Unknown)
    }

    /// True for a server's yes to a fenced send, with nothing to add.
    pub(super) fn is_plain_acceptance(&self) -> bool {
        (self.from, self.to) == (SendState::Fenced, SendState::Sent) && self.provider.is_some()
    }

    /// True if it is postponed without an attempt.
    pub fn is_postponed(&self) -> bool {
        self.to == SendState::Deferred && self.uncounted
    }

    /// The fact's id: the same for the same fact of the same attempt.
    pub fn event_id(&self) -> Uuid {
        let name = [self.event.unwrap_or("").as_bytes(), &self.send.attempt.to_be_bytes()].concat();
        Uuid::new_v5(&self.send.id, &name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::campaign(MessageKind::Campaign, Classification::Marketing, false)]
    #[case::notice_to_many(MessageKind::Campaign, Classification::Operational, false)]
    #[case::sequence(MessageKind::Sequence, Classification::Marketing, false)]
    #[case::transactional(MessageKind::Transactional, Classification::Transactional, true)]
    #[case::one_off(MessageKind::OneOff, Classification::Operational, true)]
    fn marketing_is_never_sent_again_after_unknown(
        #[case] kind: MessageKind,
        #[case] classification: Classification,
        #[case] expected: bool,
    ) {
        assert_eq!(is_tried_again(kind, classification, false), expected);
    }

    #[test]
    fn mail_in_doubt_is_final_where_another_route_could_take_it() {
        assert!(!is_tried_again(MessageKind::Transactional, Classification::Transactional, true));
    }

    /// A transactional send after so many attempts of unknown outcome.
    fn send(doubtful: i16) -> SendAttempt {
        let batch = BatchContext {
            tenant_id: Uuid::nil(),
            batch_id: Uuid::nil(),
            month: NaiveDate::MIN,
            kind: MessageKind::Transactional,
            lane: Lane::Priority,
            classification: Classification::Transactional,
            sandbox: false,
            warming: None,
            has_fallback: false,
            created_at: Utc::now(),
            quiet_length: Duration::ZERO,
        };
        SendAttempt {
            id: Uuid::nil(),
            contact_id: Uuid::nil(),
            token: Uuid::nil(),
            state: SendState::Queued,
            attempt: 1,
            doubtful,
            route: None,
            provider: None,
            provider_before: None,
            metered_on: None,
            counts: false,
            due_at: None,
            _permit: None,
            batch: Arc::new(batch),
        }
    }

    #[rstest]
    #[case::refused(|send| Change::failed(send, "block", Answer::default(), None), SendState::Failed)]
    #[case::too_late(|send| Change::expired(send, "temporary", Answer::default()), SendState::Expired)]
    #[case::suppressed(|send| Change::skipped(send, SkipReason::Suppressed), SendState::Skipped)]
    #[case::confirmed_by_the_first(|send| Change::decided(send, GateDecision::Cancel, DateTime::UNIX_EPOCH), SendState::Cancelled)]
    fn mail_whose_first_attempt_may_have_arrived_stays_unknown(
        #[case] end: fn(SendAttempt) -> Change,
        #[case] otherwise: SendState,
    ) {
        assert_eq!(end(send(0)).to, otherwise);
        let ended = end(send(1));
        assert_eq!((ended.to, ended.reason, ended.event), (SendState::Unknown, Some("no_answer"), Some("unknown")));
    }

    #[test]
    fn mail_is_late_from_the_time_it_waited_for() {
        let made_at = DateTime::UNIX_EPOCH;
        assert_eq!(send(0).wanted_at(), made_at);
        for (minutes, expected) in [(-1, made_at), (1, made_at + chrono::TimeDelta::minutes(1))] {
            let due_at = Some(made_at + chrono::TimeDelta::minutes(minutes));
            assert_eq!(SendAttempt { due_at, ..send(0) }.wanted_at(), expected);
        }
    }

    #[rstest]
    #[case::before_the_first_night(3, 13, 0)]
    #[case::after_it(20, 13, 7)]
    #[case::after_the_second(38, 13, 12)]
    #[case::no_less_as_the_second_day_begins(25, 10, 14)]
    #[case::without_quiet_hours(38, 0, 38)]
    #[case::of_four_days_at_most(116, 23, 24)]
    fn mail_does_not_age_in_the_quiet_hours_of_any_day(#[case] hours: u64, #[case] quiet: u64, #[case] expected: u64) {
        let hours_of = |hours: u64| Duration::from_secs(hours * 60 * 60);
        let batch = BatchContext { quiet_length: hours_of(quiet), ..Arc::into_inner(send(0).batch).unwrap() };
        assert_eq!(batch.age_at(batch.created_at + hours_of(hours)), hours_of(expected));
    }

    #[test]
    fn mail_that_is_deferred_after_an_unknown_outcome_stays_the_same_request() {
        let deferred = |doubtful| Change::deferred(send(doubtful), "temporary", Answer::default(), Duration::ZERO);
        assert_eq!((deferred(0).doubtful_added(), deferred(1).doubtful_added()), (0, 1));
        assert_eq!(Change::waiting(send(1), "paced", Duration::ZERO).doubtful_added(), 0);
    }

    #[test]
    fn quiet_hours_end_by_the_clock_that_the_gate_went_by() {
        let until = DateTime::UNIX_EPOCH + chrono::TimeDelta::hours(8);
        let waits = GateDecision::Wait(Hold::QuietHours { until });
        let held = Change::decided(send(0), waits, until - chrono::TimeDelta::hours(1));
        assert_eq!(held.wait, Some(Duration::from_secs(60 * 60)));
    }

    #[test]
    fn an_address_that_does_not_exist_ends_all_doubt() {
        let refused = Change::failed(send(1), "hard", Answer::default(), Some("gone@example.com".to_owned()));
        assert_eq!(refused.to, SendState::Failed);
    }
}
