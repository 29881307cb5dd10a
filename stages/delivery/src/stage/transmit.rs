//! One send through one route: pace, prepare, fence, send, record.

use std::time::{Duration, Instant};

use runner::StageError;
use runtime::{Counter, Histogram};
use schemas::token::TokenKeys;
use uuid::Uuid;

use super::{
    Delivery, SendContext,
    prepare::{ReadySend, SignedMessage},
    routes::ProviderRoute,
    sandbox,
    throttling::{self, Sendable},
};
use crate::{
    pace::{Feedback, PacePermit},
    provider::{OutgoingMessage, Refused, SendResult},
};
use ledger::fence::{Answer, Change, Fence, POISON, Recorded, SendAttempt};
use ledger::owed::{DueAttempt, retry_deadline};
use ledger::schedule::{RetryDeadline, attempt_in_round, elapsed_before, next_attempt};
use smtp::classify::{Class, ReplyDecision, ReplyOutcome, Scope};
use smtp::{Envelope, EnvelopeAddress, SmtpMessage};

/// A worker that has not begun to send this long after its fence sends nothing.
const FENCE_LIFE: Duration = Duration::from_secs(2);
/// When a send that was released without a fault of the route is announced again.
const SOON: Duration = Duration::from_secs(1);

impl Delivery {
    /// Sends one mail and records its result. `None`: the ledger has the result already.
    pub(super) async fn transmit(&self, ready: ReadySend, context: &SendContext<'_>) -> Option<Recorded> {
        // Its permits are held until it is done.
        let Sendable { due: DueAttempt { send, input, recipient }, pending_permit, .. } = ready.sendable;
        let (input, route) = (&context.inputs[input], &context.routes[input]);
        let address = input.recipients[recipient].address();
        if self.shutdown.is_cancelled() {
            return self.record(Change::released(send, SOON)).await;
        }
        let breaker_wait = if send.batch.sandbox { None } else { route.breaker.remaining() };
        if let Some(wait) = breaker_wait {
            return self.record(Change::released(send, route.wait_or_fall_back(wait))).await;
        }
        // Another provider than the first attempt's cannot recognise the mail.
        if send.doubtful > 0 && send.route != route.id {
            return self.record(Change::still_unknown(send)).await;
        }
        let send = SendAttempt { route: route.id, provider: Some(route.provider.kind().as_str()), ..send };
        let signed = match ready.message {
            Ok(signed) => signed,
            Err(class) => {
                return self.record(Change::failed(send, class, Answer::default(), None)).await;
            }
        };
        let Some(pending_permit) = pending_permit else {
            return self.capture(send, address, &signed).await;
        };
        let Some(envelope) = self.envelope(&send, address, &input.return_path_domain, &signed) else {
            return self.record(Change::failed(send, "invalid_address", Answer::default(), None)).await;
        };
        let family = pending_permit.family();
        match pending_permit.permit(&self.pacer, route.connection, &send).await {
            Ok(permit) => self.send_message(send, route, &envelope, &signed, permit).await,
            Err(refusal) => self.record(throttling::throttled_change(send, refusal, family)).await,
        }
    }

    fn envelope(&self, send: &SendAttempt, address: &str, domain: &str, signed: &SignedMessage) -> Option<Envelope> {
        Some(Envelope {
            from: Some(return_path(&self.sources.tokens, send.id, domain)?),
            to: EnvelopeAddress::parse(address)?,
            size: signed.message.as_bytes().len() + signed.signature.len(),
            eight_bit: signed.message.is_eight_bit(),
            international: !signed.message.header().is_ascii(),
        })
    }

    async fn send_message(
        &self,
        send: SendAttempt,
        route: &ProviderRoute,
        envelope: &Envelope,
        signed: &SignedMessage,
        mut permit: PacePermit,
    ) -> Option<Recorded> {
        let started = Instant::now();
        let serial = (send.attempt - send.doubtful).max(1);
        let outgoing = OutgoingMessage {
            send_id: send.id,
            serial,
            envelope,
            signature: &signed.signature,
            message: &signed.message,
        };
        if let Some(limiter) = &route.limiter {
            // A connection that was disabled has no slots to wait for, …
            if !self.routes.is_current(route).await {
                return self.record(Change::released(send, SOON)).await;
            }
            match self.shutdown.run_until_cancelled(limiter.wait_for_slot(send.batch.lane)).await {
                Some(Ok(())) => {}
                Some(Err(wait)) => return self.record(Change::waiting(send, "paced", wait)).await,
                None => return self.record(Change::released(send, SOON)).await,
            }
            // … and one that was disabled during the wait, which may take a minute, is not dialled.
            if !self.routes.is_current(route).await {
                return self.record(Change::released(send, SOON)).await;
            }
        }
        // Held until the result is queued behind it: of the fences that a crash leaves, no more are in doubt than there are connections.
        let mut prepared = match self.shutdown.run_until_cancelled(route.provider.prepare(&outgoing)).await {
            Some(Ok(prepared)) => prepared,
            Some(Err(refused)) => {
                return self.record_refusal(send, route, refused, envelope, &mut permit).await;
            }
            None => return self.record(Change::released(send, SOON)).await,
        };
        // A mail may have waited for minutes for its slot and its connection. Meanwhile the tenant may have disabled the connection, …
        if !self.routes.is_current(route).await {
            return self.record(Change::released(send, SOON)).await;
        }
        // … and the circuit may have opened.
        let _breaker_permit = match route.breaker.enter() {
            Ok(permit) => permit,
            Err(wait) => return self.record(Change::released(send, route.wait_or_fall_back(wait))).await,
        };
        let (send, fenced_at) = match self.pass_fence(send).await {
            Ok(passed) => passed,
            Err(recorded) => return recorded,
        };
        let lane = send.batch.lane.as_str();
        let result = match prepared.send(&outgoing, fenced_at + FENCE_LIFE).await {
            Ok(SendResult::Accepted { provider_message_id, answer }) => {
                route.breaker.record_success();
                permit.record_answer(Feedback::Good);
                count_answer(&send, route, "accepted");
                let now = chrono::Utc::now();
                let age = (now - send.batch.created_at).to_std().unwrap_or_default();
                Histogram::SendLatencySeconds.record(age.as_secs_f64(), [("lane", lane)]);
                let latency = (now - send.wanted_at()).to_std().unwrap_or_default();
                Histogram::RequestLatencySeconds.record(latency.as_secs_f64(), [("lane", lane)]);
                let change = Change::sent(send, answer).by(route.provider.kind().as_str(), provider_message_id);
                self.record(change).await
            }
            Ok(SendResult::NotBegun) => self.record(Change::released(send, SOON)).await,
            Err(refused) => self.record_refusal(send, route, refused, envelope, &mut permit).await,
        };
        Histogram::SmtpTransactionSeconds.record(started.elapsed().as_secs_f64(), [("lane", lane)]);
        result
    }

    /// Fences a send. Answers it with the latest time of its fence; if nothing may leave, its result.
    async fn pass_fence(&self, send: SendAttempt) -> Result<(SendAttempt, Instant), Option<Recorded>> {
        match self.ledger.fence(send.clone()).await {
            Fence::Passed { at, metered_on } => Ok((send.fenced(Some(metered_on)), at)),
            Fence::Refused => Err(None),
            // The fence may or may not have been committed: the send is released from both.
            Fence::Failed => {
                drop(self.ledger.record(Change::released(send.clone(), SOON)).await);
                Err(self.record(Change::released(send.fenced(None), SOON)).await)
            }
        }
    }

    /// Captures a sandbox mail: it is fenced like any other, and then nothing leaves.
    async fn capture(&self, send: SendAttempt, address: &str, signed: &SignedMessage) -> Option<Recorded> {
        let send = match self.pass_fence(send).await {
            Ok((send, _)) => send,
            Err(recorded) => return recorded,
        };
        let (decision, answer) = sandbox::answer(address, send.attempt);
        let is_taken = decision.outcome == ReplyOutcome::Sent;
        if is_taken && let Err(error) = self.publish_facts(&send, address, &signed.message).await {
            let error = error.chain();
            tracing::warn!(error, "the facts of a sandbox mail are not published; it is captured again");
            return self.record(Change::released(send, SOON)).await;
        }
        let change = outcome_change(send, decision, answer, address, SOON).by(sandbox::PROVIDER, None);
        self.record(if is_taken { change.capturing(signed.message.as_bytes()) } else { change }).await
    }

    /// Publishes what the recipient of a captured mail does. Before its result is recorded: a send that has one is never looked at again.
    async fn publish_facts(&self, send: &SendAttempt, address: &str, message: &SmtpMessage) -> Result<(), StageError> {
        let facts = sandbox::facts(send, address, message, &self.sources.tokens)?;
        match &self.bus {
            Some(bus) if !facts.is_empty() => Ok(bus.publish_all(facts).await?),
            _ => Ok(()),
        }
    }

    async fn record_refusal(
        &self,
        send: SendAttempt,
        route: &ProviderRoute,
        refused: Refused,
        envelope: &Envelope,
        permit: &mut PacePermit,
    ) -> Option<Recorded> {
        let Refused { decision, answer, wait } = refused;
        debug_assert_ne!(answer.code, Some(POISON), "a poisonous answer");
        let class = class_of(decision);
        // About this recipient: no sign that the relay serves nobody, which `configuration` is for the alerts.
        let counted = match (decision.scope, class) {
            (Scope::Recipient, Some(Class::Configuration)) if route.is_platform() => Class::Policy.as_str(),
            (_, class) => class.map_or("no_answer", Class::as_str),
        };
        count_answer(&send, route, counted);
        let feedback = throttling::feedback_of(decision, &answer);
        if feedback == Feedback::Deferred {
            Counter::PaceDeferralsTotal.add(1, [("receiver", permit.family())]);
        }
        permit.record_answer(feedback);
        let mut retry_wait = SOON;
        match (decision.scope, class) {
            (_, None) => route.breaker.record_unknown(),
            (Scope::Relay, Some(class)) => {
                retry_wait = route.wait_or_fall_back(route.breaker.record_failure(class, wait));
            }
            (Scope::Domain | Scope::Recipient, _) => route.breaker.record_success(),
            // The connection ended, or its server fell silent, in the envelope.
            (Scope::Connection, _) if answer.code.is_none() => route.breaker.record_unknown(),
            (Scope::Connection, _) => {}
        }
        let change = outcome_change(send, decision, answer, envelope.to.as_str(), retry_wait);
        self.record(change.by(route.provider.kind().as_str(), None)).await
    }

    async fn record(&self, change: Change) -> Option<Recorded> {
        Some(self.ledger.record(change).await)
    }
}

fn count_answer(send: &SendAttempt, route: &ProviderRoute, class: &'static str) {
    let over = if route.is_platform() { "relay" } else { "connection" };
    Counter::SmtpAnswersTotal.add(1, [("lane", send.batch.lane.as_str()), ("class", class), ("route", over)]);
}

fn class_of(decision: ReplyDecision) -> Option<Class> {
    match decision.outcome {
        ReplyOutcome::Defer(class) | ReplyOutcome::Fail { class, .. } => Some(class),
        ReplyOutcome::Sent | ReplyOutcome::Unknown => None,
    }
}

/// The ledger change for a decision about a send. `relay_wait` is how long to wait if the
/// provider itself is at fault: the send then goes back to the queue and its attempt does not count.
fn outcome_change(
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
        ReplyOutcome::Defer(class) => match wait_before_retry(&send) {
            Some(wait) => Change::deferred(send, class.as_str(), answer, wait),
            None => Change::expired(send, class.as_str(), answer),
        },
    }
}

/// The wait before the next attempt; `None` after the retry deadline.
fn wait_before_retry(send: &SendAttempt) -> Option<Duration> {
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
    next_attempt(attempt, age, deadline, send.id.as_u64_pair().1)
}

/// The return path of a send on this domain: a signed token that names the send a bounce belongs to. `None`: the domain is not valid.
fn return_path(tokens: &TokenKeys, send_id: Uuid, domain: &str) -> Option<EnvelopeAddress> {
    EnvelopeAddress::parse(&format!("{}@{domain}", tokens.return_path_local(send_id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_return_path_leads_back_to_its_send_in_any_case() {
        let (tokens, send) = (TokenKeys::derive(&[[7; 32]]), Uuid::now_v7());
        let address = return_path(&tokens, send, "send.example.com").unwrap();
        let (local, domain) = address.as_str().split_once('@').unwrap();
        assert!(local.len() <= 64 && domain == "send.example.com");
        assert_eq!(tokens.returned_send(local), Some(send));
        assert_eq!(tokens.returned_send(&local.to_ascii_uppercase()), Some(send));
    }

    #[test]
    fn a_forged_return_path_leads_nowhere() {
        let (tokens, send) = (TokenKeys::derive(&[[7; 32]]), Uuid::now_v7());
        let other = return_path(&TokenKeys::derive(&[[8; 32]]), send, "send.example.com").unwrap();
        let local = other.as_str().split_once('@').unwrap().0.to_owned();
        assert_eq!(tokens.returned_send(&local), None);
        assert_eq!(tokens.returned_send("b-1-2"), None);
        assert_eq!(tokens.returned_send("postmaster"), None);
    }

    #[test]
    fn a_return_path_made_with_an_older_key_still_leads_back() {
        let send = Uuid::now_v7();
        let old = return_path(&TokenKeys::derive(&[[7; 32]]), send, "send.example.com").unwrap();
        let local = old.as_str().split_once('@').unwrap().0.to_owned();
        assert_eq!(TokenKeys::derive(&[[8; 32], [7; 32]]).returned_send(&local), Some(send));
    }
}
