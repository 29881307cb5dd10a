//! Turns a provider's decision into a ledger change.

use std::time::Duration;

use ledger::fence::{Answer, Change, SendAttempt};
use ledger::owed::retry_deadline;
use ledger::schedule::{RetryDeadline, attempt_in_round, elapsed_before, next_attempt};
use smtp::classify::{ReplyDecision, ReplyOutcome, Scope};

/// The ledger change for a decision about a send. `relay_wait` is how long to wait if the
/// provider itself is at fault: the send then goes back to the queue and its attempt does not count.
pub(super) fn outcome_change(
    send: SendAttempt,
    decision: ReplyDecision,
    answer: Answer,
    address: &str,
    relay_wait: Duration,
) -> Change {
    match decision.outcome {
        ReplyOutcome::Sent => Change::sent(send, answer),
        ReplyOutcome::Unknown => Change::unknown(send, "no_answer"),
        ReplyOutcome::Fail { class, suppress } => {
            Change::failed(send, class.as_str(), answer, suppress.then(|| address.to_owned()))
        }
        ReplyOutcome::Defer(_) if decision.scope == Scope::Relay => Change::released(send, relay_wait),
        ReplyOutcome::Defer(class) => match retry_wait(&send) {
            Some(wait) => Change::deferred(send, class.as_str(), answer, wait),
            None => Change::expired(send, class.as_str(), answer),
        },
    }
}

/// The wait before the next attempt; `None` after the retry deadline.
fn retry_wait(send: &SendAttempt) -> Option<Duration> {
    let attempt = u32::try_from(send.attempt).unwrap_or(1);
    let deadline = retry_deadline(send.batch.kind);
    // A campaign's batch may have waited for days, scheduled or paused, and a sequence's for room under the frequency cap: their deadline
    // counts from the first attempt.
    let (attempt, age) = match deadline {
        RetryDeadline::Bulk => {
            let attempt = attempt_in_round(attempt);
            (attempt, elapsed_before(attempt))
        }
        RetryDeadline::Prompt => (attempt, send.batch.age()),
    };
    let seed = u64::try_from(send.id.as_u128() & u128::from(u64::MAX)).unwrap_or(0);
    next_attempt(attempt, age, deadline, seed)
}
