//! What the stage asks of the ledger: one send from one state to another.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, NaiveDate, Utc};
use schemas::{Classification, Lane, MessageKind, SendState, SkipReason};
use uuid::Uuid;

use super::Answer;
use crate::warmup::{DomainKey, WarmupPermit};

/// What a claim read about a batch.
#[derive(Debug)]
pub struct BatchContext {
    /// Whose.
    pub tenant_id: Uuid,
    /// The batch.
    pub batch_id: Uuid,
    /// The partition of its sends.
    pub month: NaiveDate,
    /// What kind of mail it is.
    pub kind: MessageKind,
    /// Its lane.
    pub lane: Lane,
    /// Marketing or not.
    pub classification: Classification,
    /// Nothing leaves: the capture provider takes it.
    pub sandbox: bool,
    /// Its sending domain, while that is warmed up.
    pub warming: Option<Uuid>,
    /// When it was written.
    pub created_at: DateTime<Utc>,
}

/// What becomes of mail that may have been taken: campaigns and marketing stay unknown for good at the first doubt; other mail gets one
/// more attempt with the same bytes and Message-ID (README, promise 4).
pub fn is_tried_again(kind: MessageKind, classification: Classification) -> bool {
    kind != MessageKind::Campaign && classification != Classification::Marketing
}

/// A send this process has claimed.
#[derive(Debug, Clone)]
pub struct Held {
    /// Its id.
    pub id: Uuid,
    /// The recipient.
    pub contact_id: Uuid,
    /// Proves that the claim is still ours.
    pub token: Uuid,
    /// Which attempt this is, from 1.
    pub attempt: i16,
    /// How often it has ended in doubt before.
    pub doubtful: i16,
    /// The UTC day it counts on against the quota: that of its fence. `None`: it does not count (yet).
    pub metered_on: Option<NaiveDate>,
    /// It was deferred or put off before.
    pub was_deferred: bool,
    /// Its place in what the warm-up of its domain leaves for today.
    pub _permit: Option<Arc<WarmupPermit>>,
    /// Its batch.
    pub batch: Arc<BatchContext>,
}

impl Held {
    /// Its sending domain, while that is warmed up.
    pub fn warming(&self) -> Option<DomainKey> {
        self.batch.warming.map(|domain| (self.batch.tenant_id, domain))
    }

    /// A number of its batch: sends of one batch that wait for the same thing come back together.
    pub fn seed(&self) -> u64 {
        u64::try_from((self.batch.batch_id.as_u128() >> 9) & u128::from(u64::MAX)).unwrap_or(0)
    }

    /// The send after a fence that was committed on this day.
    pub fn metered(self, today: NaiveDate) -> Self {
        Self { metered_on: self.metered_on.or(Some(today)), ..self }
    }
}

/// Until a batch of a paused tenant is rung for, to be put aside.
pub const PUT_OFF: Duration = Duration::from_secs(1);

/// When the batch is announced again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Ring {
    /// As it would be anyway.
    AsPlanned,
    /// After this time.
    After(Duration),
    /// Not before it is handed on again: the campaign is paused.
    Hold,
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
    pub send: Held,
    /// The state it must be in.
    pub from: SendState,
    /// The state it gets.
    pub to: SendState,
    /// Skip reason or failure class.
    pub reason: Option<&'static str>,
    /// The provider's words.
    pub answer: Answer,
    /// For `deferred`: until the next attempt.
    pub wait: Option<Duration>,
    /// The attempt did not take place and does not count.
    pub uncounted: bool,
    /// The outcome is in doubt.
    pub doubted: bool,
    /// The fact to record.
    pub event: Option<&'static str>,
    /// The address does not exist: suppress it.
    pub suppress: Option<String>,
    /// The way out it was tried by, once it was.
    pub provider: Option<&'static str>,
    /// The id it has there.
    pub provider_message_id: Option<String>,
    /// What the capture provider keeps.
    pub captured: Option<Captured>,
    /// When its batch is announced again.
    pub ring: Ring,
}

impl Change {
    fn new(send: Held, from: SendState, to: SendState) -> Self {
        Self {
            send,
            from,
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
            ring: Ring::AsPlanned,
        }
    }

    /// The last gate is passed.
    pub fn fenced(send: Held) -> Self {
        Self::new(send, SendState::Claimed, SendState::Fenced)
    }

    /// The server took it.
    pub fn sent(send: Held, answer: Answer) -> Self {
        Self { answer, event: Some("sent"), ..Self::new(send, SendState::Fenced, SendState::Sent) }
    }

    /// The server said "later".
    pub fn deferred(send: Held, from: SendState, class: &'static str, answer: Answer, wait: Duration) -> Self {
        Self {
            reason: Some(class),
            answer,
            wait: Some(wait),
            event: Some("deferred"),
            ..Self::new(send, from, SendState::Deferred)
        }
    }

    /// Nothing was tried, by our own choice; the next attempt is due after `wait`. `reason`: `paced` or `warmup`.
    pub fn waiting(send: Held, reason: &'static str, wait: Duration) -> Self {
        Self {
            reason: Some(reason),
            wait: Some(wait),
            uncounted: true,
            ..Self::new(send, SendState::Claimed, SendState::Deferred)
        }
    }

    /// Permanently refused. `suppress` is the address, when it certainly does not exist.
    pub fn failed(send: Held, from: SendState, class: &'static str, answer: Answer, suppress: Option<String>) -> Self {
        Self {
            reason: Some(class),
            answer,
            event: Some("failed"),
            suppress,
            ..Self::new(send, from, SendState::Failed)
        }
    }

    /// Its time ran out.
    pub fn expired(send: Held, from: SendState, class: &'static str, answer: Answer) -> Self {
        Self { reason: Some(class), answer, event: Some("expired"), ..Self::new(send, from, SendState::Expired) }
    }

    /// Nobody can say whether the server took it.
    pub fn unknown(send: Held, reason: &'static str) -> Self {
        let again = is_tried_again(send.batch.kind, send.batch.classification) && send.doubtful == 0;
        let (to, ring) = if again {
            (SendState::Queued, Ring::After(Duration::from_secs(5)))
        } else {
            (SendState::Unknown, Ring::AsPlanned)
        };
        Self {
            reason: Some(reason),
            doubted: true,
            event: Some("unknown"),
            ring,
            ..Self::new(send, SendState::Fenced, to)
        }
    }

    /// Certainly not sent and still owed: back to the queue, rung again after `wait`.
    pub fn released(send: Held, from: SendState, wait: Duration) -> Self {
        Self { uncounted: true, ring: Ring::After(wait), ..Self::new(send, from, SendState::Queued) }
    }

    /// Back to the queue until the campaign goes on.
    pub fn held_back(send: Held) -> Self {
        Self { uncounted: true, ring: Ring::Hold, ..Self::new(send, SendState::Claimed, SendState::Queued) }
    }

    /// Back to the queue while the tenant is paused. The batch is rung for again and comes to compliance, which puts it aside: it can
    /// make sure that the tenant is not being resumed at the same time.
    pub fn put_off(send: Held) -> Self {
        Self::released(send, SendState::Claimed, PUT_OFF)
    }

    /// Withheld on purpose.
    pub fn skipped(send: Held, reason: SkipReason) -> Self {
        Self {
            reason: Some(reason.as_str()),
            uncounted: true,
            event: Some("skipped"),
            ..Self::new(send, SendState::Claimed, SendState::Skipped)
        }
    }

    /// The campaign was cancelled first.
    pub fn cancelled(send: Held) -> Self {
        Self { uncounted: true, ..Self::new(send, SendState::Claimed, SendState::Cancelled) }
    }

    /// Says by which way it went, and under which id it is known there.
    pub fn by(self, provider: &'static str, provider_message_id: Option<String>) -> Self {
        Self { provider: Some(provider), provider_message_id, ..self }
    }

    /// Keeps a copy of the message.
    pub fn capturing(self, message: &[u8]) -> Self {
        Self { captured: Some(Captured::of(message)), ..self }
    }

    /// A hard refusal is a bounce as well.
    pub fn is_bounce(&self) -> bool {
        self.suppress.is_some()
    }

    /// The totals this change adds to, when it takes place.
    pub fn rollups(&self) -> impl Iterator<Item = &'static str> {
        let state = match self.to {
            SendState::Sent => Some("sent"),
            SendState::Failed | SendState::Expired => Some("failed"),
            SendState::Skipped => Some("skipped"),
            SendState::Unknown => Some("unknown"),
            _ => None,
        };
        state.into_iter().chain(self.is_bounce().then_some("bounced"))
    }

    /// Why it failed or is in doubt, for the totals of failures: a class or code from a bounded set.
    pub fn failure(&self) -> Option<&'static str> {
        let failed = matches!(self.to, SendState::Failed | SendState::Expired | SendState::Unknown);
        self.reason.filter(|_| failed)
    }

    /// Whether this uses up quota (a first fence) or gives it back (a fence after which nothing left).
    pub fn metered(&self) -> i64 {
        match (self.from, self.to) {
            (_, SendState::Fenced) if self.send.metered_on.is_none() => 1,
            (SendState::Fenced, SendState::Queued) => -1,
            _ => 0,
        }
    }

    /// Whether it waits by our own choice.
    pub fn is_put_off(&self) -> bool {
        self.to == SendState::Deferred && self.uncounted
    }

    /// A fact's id: the same fact of the same attempt has the same one.
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
    fn marketing_is_never_sent_again_from_a_doubt(
        #[case] kind: MessageKind,
        #[case] classification: Classification,
        #[case] expected: bool,
    ) {
        assert_eq!(is_tried_again(kind, classification), expected);
    }
}
