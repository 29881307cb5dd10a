//! Throttling: gives each owed send a pace permit, or defers it.

use std::sync::Arc;

use runtime::Counter;
use schemas::{Lane, Rendered, SendState};
use uuid::Uuid;

use super::routes::{ProviderRoute, WorkerPermit};
use crate::pace::{Feedback, PacePermit, PacePriority, PaceRefusal, Pacer, ThrottleKey};
use ledger::fence::{Answer, Change, SendAttempt};
use ledger::owed::DueAttempt;
use ledger::schedule::fraction;
use smtp::classify::{Class, ReplyDecision, ReplyOutcome, Scope};

/// An owed send, and its permits.
#[derive(Debug)]
pub(crate) struct Sendable {
    pub due: DueAttempt,
    /// Its permit to start. `None`: the sandbox captures the mail.
    pub pending_permit: Option<PendingPermit>,
    /// The permit of its connection to use the worker, until it is dropped.
    pub _worker: Option<Arc<WorkerPermit>>,
}

/// A mail's throttle key, and its pace permit if it was granted early.
#[derive(Debug)]
pub(crate) struct PendingPermit {
    key: ThrottleKey,
    permit: Option<PacePermit>,
}

impl PendingPermit {
    /// The receiver's family, for metrics.
    pub fn family(&self) -> &'static str {
        self.key.receiver.family
    }

    /// Returns the permit to start. May wait for a moment. `over`: the tenant's connection that carries the mail; `None`: the platform's
    /// relay.
    ///
    /// # Errors
    /// [`PaceRefusal`].
    pub async fn permit(
        self,
        pacer: &Pacer,
        over: Option<Uuid>,
        send: &SendAttempt,
    ) -> Result<PacePermit, PaceRefusal> {
        match self.permit {
            Some(permit) => Ok(permit),
            None => pacer.acquire(self.key, over, pace_priority(send), was_attempted(send)).await,
        }
    }
}

/// Gives each mail its throttle key and takes out the mail that may not go now, before it is signed or holds a connection.
pub(crate) fn throttle_sends(
    pacer: &Pacer,
    inputs: &[Rendered],
    routes: &[ProviderRoute],
    sendable: Vec<Sendable>,
) -> (Vec<Sendable>, Vec<Change>) {
    let (mut going, mut throttled) = (Vec::with_capacity(sendable.len()), Vec::new());
    for sendable in sendable {
        let DueAttempt { send, input, recipient } = &sendable.due;
        if send.batch.sandbox {
            going.push(sendable);
            continue;
        }
        let (input, connection) = (&inputs[*input], routes[*input].connection);
        let address = input.recipients[*recipient].address();
        let domain = address.rsplit_once('@').map_or("", |(_, domain)| domain);
        let key = ThrottleKey::new(input.tenant_id, &input.sending_domain, domain);
        match pacer.try_acquire(&key, connection, pace_priority(send), was_attempted(send)) {
            Ok(permit) => {
                going.push(Sendable { pending_permit: Some(PendingPermit { key, permit }), ..sendable });
            }
            Err(wait) => throttled.push(throttled_change(sendable.due.send, wait, key.receiver.family)),
        }
    }
    (going, throttled)
}

/// The ledger change for a mail that may not go now.
pub(crate) fn throttled_change(send: SendAttempt, throttled: PaceRefusal, family: &'static str) -> Change {
    let wait = match throttled {
        PaceRefusal::Throttled(wait) => wait,
        // Spread by batch: sends of one batch come back together, different batches apart.
        PaceRefusal::QueueFull(furthest) => furthest.mul_f64(0.5 + fraction(send.seed(), 1) / 2.0),
        PaceRefusal::RetryDeadlinePassed => {
            return Change::expired(send, Class::Throttled.as_str(), Answer::default());
        }
    };
    Counter::PacePostponedTotal.add(1, [("receiver", family)]);
    Change::waiting(send, "paced", wait)
}

/// What a result says about the receiver's willingness to take mail.
pub(crate) fn feedback_of(decision: ReplyDecision, answer: &Answer) -> Feedback {
    match (decision.outcome, decision.scope) {
        // The provider is at fault, or there was no answer.
        (_, Scope::Relay) | (ReplyOutcome::Unknown, _) => Feedback::Silent,
        (ReplyOutcome::Sent, _) => Feedback::Good,
        (ReplyOutcome::Defer(_), Scope::Domain) => Feedback::Deferred,
        (ReplyOutcome::Defer(_), Scope::Connection) if answer.code.is_none() => Feedback::Silent,
        // One mailbox takes no more now.
        (ReplyOutcome::Defer(Class::MailboxFull), _) | (ReplyOutcome::Defer(Class::Throttled), Scope::Recipient) => {
            Feedback::Good
        }
        // The settings of us or of the relay are at fault: that says nothing about the receiver.
        (ReplyOutcome::Defer(Class::Configuration), _) => Feedback::Silent,
        (ReplyOutcome::Defer(_), _) if is_greylisting(answer) => Feedback::Silent,
        (ReplyOutcome::Defer(_), _) => Feedback::Deferred,
        (ReplyOutcome::Fail { class: Class::Block, .. }, _) => Feedback::Silent,
        (ReplyOutcome::Fail { .. }, _) => Feedback::Good,
    }
}

/// True for greylisting: every first attempt is deferred, whatever the pace.
fn is_greylisting(answer: &Answer) -> bool {
    let text = answer.text.as_deref().unwrap_or("").to_ascii_lowercase();
    answer.enhanced.as_deref() == Some("4.7.1") || text.contains("greylist") || text.contains("graylist")
}

fn pace_priority(send: &SendAttempt) -> PacePriority {
    match send.batch.lane {
        Lane::Priority => PacePriority::Prompt,
        Lane::Bulk if send.state == SendState::Deferred => PacePriority::Retry,
        Lane::Bulk => PacePriority::New,
    }
}

fn was_attempted(send: &SendAttempt) -> bool {
    send.attempt > 1
}

#[cfg(test)]
mod tests {
    use super::{
        Class::{Block, Configuration, Hard, MailboxFull, Temporary, Throttled, Unreachable},
        Feedback::{Deferred, Good, Silent},
        *,
    };
    use rstest::rstest;

    fn defer(class: Class, scope: Scope) -> ReplyDecision {
        ReplyDecision::defer(class, scope)
    }

    fn fail(class: Class) -> ReplyDecision {
        ReplyDecision::fail(class)
    }

    fn answer(code: Option<i16>, enhanced: &str, text: &str) -> Answer {
        Answer { code, enhanced: Some(enhanced.to_owned()), text: Some(text.to_owned()) }
    }

    #[rstest]
    #[case::throttled(defer(Throttled, Scope::Domain), answer(Some(421), "4.7.28", "slow down"), Deferred)]
    #[case::local_error(defer(Temporary, Scope::Recipient), answer(Some(451), "4.3.0", "later"), Deferred)]
    #[case::going_down(defer(Temporary, Scope::Connection), answer(Some(421), "4.3.2", "closing"), Deferred)]
    #[case::lost(defer(Temporary, Scope::Connection), answer(None, "", ""), Silent)]
    #[case::relay_denied(
        defer(Configuration, Scope::Recipient),
        answer(Some(554), "5.7.1", "Relay access denied"),
        Silent
    )]
    #[case::greylisted(defer(Temporary, Scope::Recipient), answer(Some(450), "4.7.1", "try again"), Silent)]
    #[case::in_words(defer(Temporary, Scope::Recipient), answer(Some(451), "4.3.0", "Greylisted"), Silent)]
    #[case::full(defer(MailboxFull, Scope::Recipient), answer(Some(452), "4.2.2", "full"), Good)]
    #[case::too_much_for_one_mailbox(
        defer(Throttled, Scope::Recipient),
        answer(Some(450), "4.2.1", "receiving mail at a rate"),
        Good
    )]
    #[case::relay(defer(Unreachable, Scope::Relay), answer(None, "", ""), Silent)]
    #[case::no_such_user(fail(Hard), answer(Some(550), "5.1.1", "no"), Good)]
    #[case::blocked(fail(Block), answer(Some(550), "5.7.1", "no"), Silent)]
    fn only_answers_of_the_receiver_change_its_pace(
        #[case] decision: ReplyDecision,
        #[case] answer: Answer,
        #[case] expected: Feedback,
    ) {
        assert_eq!(feedback_of(decision, &answer), expected);
    }
}
