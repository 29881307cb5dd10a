//! One send over one connection: pace, open, fence, body, result.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use runtime::{Counter, Histogram};
use schemas::{SendState, token::TokenKeys};
use tokio_util::sync::CancellationToken;

use super::{
    ledger::{Answer, Change, Fence, Held, Ledger, Recorded},
    outage::Outage,
    prepare::{Ready, Signed},
    return_path::return_path,
    sandbox, verdict,
};
use crate::{
    classify::{Class, Decision, Outcome, Scope, classify},
    pace::{DomainPaces, PacePermit},
    smtp::{AtData, Cause, Envelope, EnvelopeAddress, Pool, SmtpFailure},
};

/// A worker that has not begun to send so long after its fence drops the connection.
const FENCE_LIFE: Duration = Duration::from_secs(2);
/// When a send that was released without fault of the relay is announced again.
const SOON: Duration = Duration::from_secs(1);

/// A lane's way out.
pub(crate) struct Transmitter {
    pub pool: Pool,
    pub paces: DomainPaces,
    pub ledger: Ledger,
    pub outage: Arc<Outage>,
    pub tokens: Arc<TokenKeys>,
    pub shutdown: CancellationToken,
}

impl Transmitter {
    /// Sends one mail, or finds out why not; answers its result on the way to the ledger. `None`: the ledger has it already.
    pub async fn transmit(&self, ready: Ready) -> Option<Recorded> {
        let Ready { send, address, return_path_domain, message } = ready;
        if self.shutdown.is_cancelled() {
            return self.record(Change::released(send, SendState::Claimed, SOON)).await;
        }
        if let Some(wait) = self.outage.remaining() {
            return self.record(Change::released(send, SendState::Claimed, wait)).await;
        }
        let signed = match message {
            Ok(signed) => signed,
            Err(class) => {
                return self.record(Change::failed(send, SendState::Claimed, class, Answer::default(), None)).await;
            }
        };
        if send.batch.sandbox {
            return self.capture(send, &address).await;
        }
        let Some(envelope) = self.envelope(&send, &address, &return_path_domain, &signed) else {
            return self
                .record(Change::failed(send, SendState::Claimed, "invalid_address", Answer::default(), None))
                .await;
        };
        match self.paces.acquire(envelope.to.domain()).await {
            Ok(permit) => self.hand_over(send, &envelope, &signed, permit).await,
            Err(paused) => self.record(Change::paced(send, paused.wait + SOON)).await,
        }
    }

    fn envelope(&self, send: &Held, address: &str, domain: &str, signed: &Signed) -> Option<Envelope> {
        Some(Envelope {
            from: Some(return_path(&self.tokens, send.id, domain).ok()?),
            to: EnvelopeAddress::parse(address).ok()?,
            size: signed.message.as_bytes().len() + signed.signature.len(),
            eight_bit: signed.message.is_eight_bit(),
        })
    }

    async fn hand_over(
        &self,
        send: Held,
        envelope: &Envelope,
        signed: &Signed,
        mut permit: PacePermit,
    ) -> Option<Recorded> {
        let started = Instant::now();
        let at_data = match self.pool.open(envelope).await {
            Ok(at_data) => at_data,
            Err(failure) => return self.failed(send, SendState::Claimed, &failure, envelope, &mut permit).await,
        };
        let (at_data, fenced_at) = match self.fence(&send, at_data).await {
            Ok(fenced) => fenced,
            Err(recorded) => return recorded,
        };
        let lane = send.batch.lane.as_str();
        let result = match at_data.send(&signed.signature, &signed.message, fenced_at + FENCE_LIFE).await {
            Ok(accepted) => {
                self.outage.over();
                Counter::SmtpAnswersTotal.add(1, [("lane", lane), ("class", "accepted")]);
                let age = (chrono::Utc::now() - send.batch.created_at).to_std().unwrap_or_default();
                Histogram::SendLatencySeconds.record(age.as_secs_f64(), [("lane", lane)]);
                self.record(Change::sent(send, verdict::answer(Some(&accepted.reply)))).await
            }
            Err(failure) if matches!(failure.cause, Cause::FenceTooOld) => {
                self.record(Change::released(send, SendState::Fenced, SOON)).await
            }
            Err(failure) => self.failed(send, SendState::Fenced, &failure, envelope, &mut permit).await,
        };
        Histogram::SmtpTransactionSeconds.record(started.elapsed().as_secs_f64(), [("lane", lane)]);
        result
    }

    /// The last gate. Everything but a pass abandons the connection: SMTP has no other way back from 354.
    async fn fence(&self, send: &Held, at_data: AtData) -> Result<(AtData, Instant), Option<Recorded>> {
        match self.ledger.fence(send.clone()).await {
            Fence::Passed(at) => Ok((at_data, at)),
            Fence::Refused => {
                at_data.abandon();
                Err(None)
            }
            Fence::Failed => {
                at_data.abandon();
                Err(self.release_in_doubt(send).await)
            }
        }
    }

    /// A commit that failed may have happened: the send is released from whichever of the two states it is in.
    async fn release_in_doubt(&self, send: &Held) -> Option<Recorded> {
        drop(self.ledger.record(Change::released(send.clone(), SendState::Claimed, SOON)).await);
        self.record(Change::released(send.clone(), SendState::Fenced, SOON)).await
    }

    /// The capture provider: the gate is the same, and then nothing leaves.
    async fn capture(&self, send: Held, address: &str) -> Option<Recorded> {
        match self.ledger.fence(send.clone()).await {
            Fence::Passed(_) => {
                let (decision, answer) = sandbox::answer(address);
                self.record(verdict::change(send, SendState::Fenced, decision, answer, address, SOON)).await
            }
            Fence::Refused => None,
            Fence::Failed => self.release_in_doubt(&send).await,
        }
    }

    async fn failed(
        &self,
        send: Held,
        from: SendState,
        failure: &SmtpFailure,
        envelope: &Envelope,
        permit: &mut PacePermit,
    ) -> Option<Recorded> {
        let decision = classify(failure);
        let class = class_of(decision);
        Counter::SmtpAnswersTotal
            .add(1, [("lane", send.batch.lane.as_str()), ("class", class.map_or("no_answer", Class::as_str))]);
        let mut relay_wait = SOON;
        match (decision.scope, class) {
            (_, None) => self.outage.doubt(),
            (Scope::Relay, Some(class)) => relay_wait = self.outage.report(class),
            (Scope::Domain, _) => {
                self.outage.over();
                permit.throttled();
            }
            (Scope::Recipient, _) => self.outage.over(),
            (Scope::Connection, _) => {}
        }
        let answer = verdict::answer(failure.reply());
        self.record(verdict::change(send, from, decision, answer, envelope.to.as_str(), relay_wait)).await
    }

    async fn record(&self, change: Change) -> Option<Recorded> {
        Some(self.ledger.record(change).await)
    }
}

fn class_of(decision: Decision) -> Option<Class> {
    match decision.outcome {
        Outcome::Defer(class) | Outcome::Fail { class, .. } => Some(class),
        Outcome::Sent | Outcome::Unknown => None,
    }
}
