//! The way of one mail to its receiver: at the pace of its path, or put off.

use runtime::Counter;
use schemas::{Lane, Rendered, SendState};

use crate::pace::{Feedback, PacePermit, Paces, Path, PutOff, Turn};
use ledger::claim::ClaimedRecipient;
use ledger::fence::{Answer, Change, ClaimedSend};
use ledger::schedule::fraction;
use smtp::classify::{Class, Decision, Outcome, Scope};

/// A claimed send on its way, and where its parts are.
#[derive(Debug)]
pub(crate) struct Sendable {
    pub send: ClaimedSend,
    /// Index of the message.
    pub input: usize,
    /// Index of the recipient in it.
    pub recipient: usize,
    /// The route it takes to its receiver. `None`: it is captured.
    pub passage: Option<Passage>,
}

impl From<ClaimedRecipient> for Sendable {
    fn from(ClaimedRecipient { send, input, recipient }: ClaimedRecipient) -> Self {
        Self { send, input, recipient, passage: None }
    }
}

/// A mail's path, and its permit if it has one already.
#[derive(Debug)]
pub(crate) struct Passage {
    path: Path,
    permit: Option<PacePermit>,
}

impl Passage {
    /// The receiver's family.
    pub fn family(&self) -> &'static str {
        self.path.receiver.family
    }

    /// The permit to start, which may have to be waited for, for a moment.
    ///
    /// # Errors
    /// [`PutOff`].
    pub async fn permit(self, paces: &Paces, send: &ClaimedSend) -> Result<PacePermit, PutOff> {
        match self.permit {
            Some(permit) => Ok(permit),
            None => paces.acquire(self.path, turn(send), was_tried(send)).await,
        }
    }
}

/// Gives each mail its path, and sorts out at once what is not to go now: it is neither signed nor does it hold a connection.
pub(crate) fn sort(paces: &Paces, inputs: &[Rendered], sendable: Vec<Sendable>) -> (Vec<Sendable>, Vec<Change>) {
    let (mut going, mut put_off) = (Vec::with_capacity(sendable.len()), Vec::new());
    for sendable in sendable {
        if sendable.send.batch.sandbox {
            going.push(sendable);
            continue;
        }
        let input = &inputs[sendable.input];
        let address = &input.recipients[sendable.recipient].address;
        let domain = address.rsplit_once('@').map_or("", |(_, domain)| domain);
        let path = Path::new(input.tenant_id, &input.sending_domain, domain);
        match paces.try_acquire(&path, turn(&sendable.send), was_tried(&sendable.send)) {
            Ok(permit) => going.push(Sendable { passage: Some(Passage { path, permit }), ..sendable }),
            Err(wait) => put_off.push(change(sendable.send, wait, path.receiver.family)),
        }
    }
    (going, put_off)
}

/// What becomes of a mail that may not go now.
pub(crate) fn change(send: ClaimedSend, put_off: PutOff, family: &'static str) -> Change {
    let wait = match put_off {
        PutOff::Throttled(wait) => wait,
        // Those of a batch come back together, and not with those of all others.
        PutOff::QueueFull(furthest) => furthest.mul_f64(0.5 + fraction(send.seed(), 1) / 2.0),
        PutOff::RetryDeadlinePassed => {
            return Change::expired(send, SendState::Claimed, Class::Throttled.as_str(), Answer::default());
        }
    };
    Counter::PacePostponedTotal.add(1, [("receiver", family)]);
    Change::waiting(send, "paced", wait)
}

/// What a refusal says about the receiver.
pub(crate) fn feedback(decision: Decision, answer: &Answer) -> Feedback {
    match (decision.outcome, decision.scope) {
        // The way out is at fault, or nobody said anything.
        (_, Scope::Relay) | (Outcome::Unknown, _) => Feedback::Silent,
        (Outcome::Sent, _) => Feedback::Good,
        (Outcome::Defer(_), Scope::Domain) => Feedback::Deferred,
        (Outcome::Defer(_), Scope::Connection) if answer.code.is_none() => Feedback::Silent,
        (Outcome::Defer(Class::MailboxFull), _) => Feedback::Good,
        (Outcome::Defer(_), _) if is_greylisting(answer) => Feedback::Silent,
        (Outcome::Defer(_), _) => Feedback::Deferred,
        (Outcome::Fail { class: Class::Block, .. }, _) => Feedback::Silent,
        (Outcome::Fail { .. }, _) => Feedback::Good,
    }
}

/// Greylisting asks everybody to come a second time, however slowly he comes.
fn is_greylisting(answer: &Answer) -> bool {
    let words = answer.text.as_deref().unwrap_or("").to_ascii_lowercase();
    answer.enhanced.as_deref() == Some("4.7.1") || words.contains("greylist") || words.contains("graylist")
}

fn turn(send: &ClaimedSend) -> Turn {
    match send.batch.lane {
        Lane::Priority => Turn::Prompt,
        Lane::Bulk if send.was_deferred => Turn::Again,
        Lane::Bulk => Turn::New,
    }
}

fn was_tried(send: &ClaimedSend) -> bool {
    send.attempt > 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn answer(code: Option<i16>, enhanced: &str, text: &str) -> Answer {
        Answer { code, enhanced: Some(enhanced.to_owned()), text: Some(text.to_owned()) }
    }

    #[rstest]
    #[case::throttled(
        Decision::defer(Class::Throttled, Scope::Domain),
        answer(Some(421), "4.7.28", "slow down"),
        Feedback::Deferred
    )]
    #[case::local_error(
        Decision::defer(Class::Temporary, Scope::Recipient),
        answer(Some(451), "4.3.0", "later"),
        Feedback::Deferred
    )]
    #[case::going_down(
        Decision::defer(Class::Temporary, Scope::Connection),
        answer(Some(421), "4.3.2", "closing"),
        Feedback::Deferred
    )]
    #[case::lost(Decision::defer(Class::Temporary, Scope::Connection), answer(None, "", ""), Feedback::Silent)]
    #[case::greylisted(
        Decision::defer(Class::Temporary, Scope::Recipient),
        answer(Some(450), "4.7.1", "try again"),
        Feedback::Silent
    )]
    #[case::in_words(
        Decision::defer(Class::Temporary, Scope::Recipient),
        answer(Some(451), "4.3.0", "Greylisted"),
        Feedback::Silent
    )]
    #[case::full(
        Decision::defer(Class::MailboxFull, Scope::Recipient),
        answer(Some(452), "4.2.2", "full"),
        Feedback::Good
    )]
    #[case::relay(Decision::defer(Class::Unreachable, Scope::Relay), answer(None, "", ""), Feedback::Silent)]
    #[case::no_such_user(Decision::fail(Class::Hard), answer(Some(550), "5.1.1", "no"), Feedback::Good)]
    #[case::blocked(Decision::fail(Class::Block), answer(Some(550), "5.7.1", "no"), Feedback::Silent)]
    fn a_refusal_says_something_about_the_receiver_or_nothing(
        #[case] decision: Decision,
        #[case] answer: Answer,
        #[case] expected: Feedback,
    ) {
        assert_eq!(feedback(decision, &answer), expected);
    }
}
