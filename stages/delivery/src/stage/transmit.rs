//! One send through one route: pace, prepare, fence, send, record.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use runtime::{Counter, Histogram};
use schemas::token::TokenKeys;
use tokio_util::sync::CancellationToken;

use super::{
    outcome,
    prepare::{ReadySend, SignedMessage},
    return_path::return_path,
    routes::ProviderRoute,
    sandbox::{self, Capture},
    throttling,
};
use crate::{
    pace::{Feedback, PacePermit, Pacer},
    provider::{OutgoingMessage, Refused, SendResult},
};
use ledger::fence::{Answer, Change, Fence, Ledger, POISON, Recorded, SendAttempt};
use smtp::classify::{Class, ReplyDecision, ReplyOutcome, Scope};
use smtp::{Envelope, EnvelopeAddress};

/// A worker that has not begun to send this long after its fence sends nothing.
const FENCE_LIFE: Duration = Duration::from_secs(2);
/// When a send that was released without a fault of the route is announced again.
const SOON: Duration = Duration::from_secs(1);

/// Sends single mails.
pub(crate) struct Transmitter {
    pub pacer: Pacer,
    pub ledger: Ledger,
    pub tokens: Arc<TokenKeys>,
    pub shutdown: CancellationToken,
}

impl Transmitter {
    /// Sends one mail and records its result. `None`: the ledger has the result already.
    pub async fn transmit(&self, ready: ReadySend, route: &ProviderRoute, capture: &Capture) -> Option<Recorded> {
        let ReadySend { send, address, return_path_domain, pending_permit, message, .. } = ready;
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
        let send = SendAttempt { route: route.id, ..send };
        let signed = match message {
            Ok(signed) => signed,
            Err(class) => {
                return self.record(Change::failed(send, class, Answer::default(), None)).await;
            }
        };
        let Some(pending_permit) = pending_permit else { return self.capture(send, &address, &signed, capture).await };
        let Some(envelope) = self.envelope(&send, &address, &return_path_domain, &signed) else {
            return self.record(Change::failed(send, "invalid_address", Answer::default(), None)).await;
        };
        let family = pending_permit.family();
        match pending_permit.permit(&self.pacer, &send).await {
            Ok(permit) => self.send_message(send, route, &envelope, &signed, permit).await,
            Err(refusal) => self.record(throttling::throttled_change(send, refusal, family)).await,
        }
    }

    fn envelope(&self, send: &SendAttempt, address: &str, domain: &str, signed: &SignedMessage) -> Option<Envelope> {
        Some(Envelope {
            from: Some(return_path(&self.tokens, send.id, domain).ok()?),
            to: EnvelopeAddress::parse(address).ok()?,
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
        match self.shutdown.run_until_cancelled(route.provider.wait_for_slot()).await {
            Some(Ok(())) => {}
            Some(Err(wait)) => return self.record(Change::waiting(send, "paced", wait)).await,
            None => return self.record(Change::released(send, SOON)).await,
        }
        // Held until the result is queued behind it: of the fences that a crash leaves, no more are in doubt than there are connections.
        let mut prepared = match self.shutdown.run_until_cancelled(route.provider.prepare(&outgoing)).await {
            Some(Ok(prepared)) => prepared,
            Some(Err(refused)) => {
                return self.record_refusal(send, route, refused, envelope, &mut permit).await;
            }
            None => return self.record(Change::released(send, SOON)).await,
        };
        // A mail may have waited for minutes for its slot and its connection, and the circuit may have opened meanwhile.
        let _breaker_permit = match route.breaker.enter() {
            Ok(permit) => permit,
            Err(wait) => return self.record(Change::released(send, route.wait_or_fall_back(wait))).await,
        };
        let (send, fenced_at) = match self.ledger.fence(send.clone()).await {
            Fence::Passed { at, metered_on } => (send.fenced(Some(metered_on)), at),
            Fence::Refused => return None,
            Fence::Failed => return self.release_unknown_fence(&send).await,
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

    /// Releases a send whose fence may or may not have been committed.
    async fn release_unknown_fence(&self, send: &SendAttempt) -> Option<Recorded> {
        drop(self.ledger.record(Change::released(send.clone(), SOON)).await);
        self.record(Change::released(send.clone().fenced(None), SOON)).await
    }

    /// Captures a sandbox mail: it is fenced like any other, and then nothing leaves.
    async fn capture(
        &self,
        send: SendAttempt,
        address: &str,
        signed: &SignedMessage,
        capture: &Capture,
    ) -> Option<Recorded> {
        match self.ledger.fence(send.clone()).await {
            Fence::Passed { metered_on, .. } => {
                let send = send.fenced(Some(metered_on));
                let (decision, answer) = sandbox::answer(address, send.attempt);
                let is_taken = decision.outcome == ReplyOutcome::Sent;
                if is_taken {
                    capture.collect_facts(&send, address, &signed.message, &self.tokens);
                }
                let change = outcome::outcome_change(send, decision, answer, address, SOON);
                let change = change.by(sandbox::PROVIDER, None);
                self.record(if is_taken { change.capturing(signed.message.as_bytes()) } else { change }).await
            }
            Fence::Refused => None,
            Fence::Failed => self.release_unknown_fence(&send).await,
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
        let change = outcome::outcome_change(send, decision, answer, envelope.to.as_str(), retry_wait);
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
