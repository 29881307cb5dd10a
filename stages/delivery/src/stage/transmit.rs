//! One send by one way: pace, open, fence, hand over, result.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use runtime::{Counter, Histogram};
use schemas::{SendId, SendState, token::TokenKeys};
use tokio_util::sync::CancellationToken;

use super::{
    passage,
    prepare::{Ready, Signed},
    return_path::return_path,
    sandbox::{self, Capture},
    verdict,
    ways::Way,
};
use crate::{
    pace::{Feedback, PacePermit, Paces},
    provider::{OutgoingMessage, PreparedSend, Refused, SendResult},
};
use ledger::fence::{Answer, Change, ClaimedSend, Fence, Ledger, POISON, Recorded};
use smtp::classify::{Class, Decision, Outcome, Scope};
use smtp::{Envelope, EnvelopeAddress};

/// A worker that has not begun to send so long after its fence drops the connection.
const FENCE_LIFE: Duration = Duration::from_secs(2);
/// When a send that was released without fault of the way is announced again.
const SOON: Duration = Duration::from_secs(1);

/// Sends.
pub(crate) struct Transmitter {
    pub paces: Paces,
    pub ledger: Ledger,
    pub tokens: Arc<TokenKeys>,
    pub shutdown: CancellationToken,
}

impl Transmitter {
    /// Sends one mail, or finds out why not; answers its result on the way to the ledger. `None`: the ledger has it already.
    pub async fn transmit(&self, ready: Ready, way: &Way, capture: &Capture) -> Option<Recorded> {
        let Ready { send, address, return_path_domain, passage, message, .. } = ready;
        if self.shutdown.is_cancelled() {
            return self.record(Change::released(send, SendState::Claimed, SOON)).await;
        }
        let resting = if send.batch.sandbox { None } else { way.outage.remaining() };
        if let Some(wait) = resting {
            return self.record(Change::released(send, SendState::Claimed, wait)).await;
        }
        let signed = match message {
            Ok(signed) => signed,
            Err(class) => {
                return self.record(Change::failed(send, SendState::Claimed, class, Answer::default(), None)).await;
            }
        };
        let Some(passage) = passage else { return self.capture(send, &address, &signed, capture).await };
        let Some(envelope) = self.envelope(&send, &address, &return_path_domain, &signed) else {
            return self
                .record(Change::failed(send, SendState::Claimed, "invalid_address", Answer::default(), None))
                .await;
        };
        let family = passage.family();
        match passage.permit(&self.paces, &send).await {
            Ok(permit) => self.hand_over(send, way, &envelope, &signed, permit).await,
            Err(put_off) => self.record(passage::change(send, put_off, family)).await,
        }
    }

    fn envelope(&self, send: &ClaimedSend, address: &str, domain: &str, signed: &Signed) -> Option<Envelope> {
        Some(Envelope {
            from: Some(return_path(&self.tokens, send.id, domain).ok()?),
            to: EnvelopeAddress::parse(address).ok()?,
            size: signed.message.as_bytes().len() + signed.signature.len(),
            eight_bit: signed.message.is_eight_bit(),
        })
    }

    async fn hand_over(
        &self,
        send: ClaimedSend,
        way: &Way,
        envelope: &Envelope,
        signed: &Signed,
        mut permit: PacePermit,
    ) -> Option<Recorded> {
        let started = Instant::now();
        let serial = (send.attempt - send.doubtful).max(1);
        let parcel = OutgoingMessage {
            send_id: send.id,
            serial,
            envelope,
            signature: &signed.signature,
            message: &signed.message,
        };
        match self.shutdown.run_until_cancelled(way.provider.turn()).await {
            Some(Ok(())) => {}
            Some(Err(wait)) => return self.record(Change::waiting(send, "paced", wait)).await,
            None => return self.record(Change::released(send, SendState::Claimed, SOON)).await,
        }
        let opened = match way.provider.open(&parcel).await {
            Ok(opened) => opened,
            Err(refused) => return self.refused(send, SendState::Claimed, way, refused, envelope, &mut permit).await,
        };
        let (send, opened, fenced_at) = match self.fence(send, opened).await {
            Ok(fenced) => fenced,
            Err(recorded) => return recorded,
        };
        let lane = send.batch.lane.as_str();
        let result = match opened.send(&parcel, fenced_at + FENCE_LIFE).await {
            Ok(SendResult::Taken { provider_message_id, answer }) => {
                way.outage.over();
                permit.heard(Feedback::Good);
                Counter::SmtpAnswersTotal.add(1, [("lane", lane), ("class", "accepted")]);
                let now = chrono::Utc::now();
                let age = (now - send.batch.created_at).to_std().unwrap_or_default();
                Histogram::SendLatencySeconds.record(age.as_secs_f64(), [("lane", lane)]);
                let road = (now - SendId(send.id).made_at()).to_std().unwrap_or_default();
                Histogram::RequestLatencySeconds.record(road.as_secs_f64(), [("lane", lane)]);
                let change = Change::sent(send, answer).by(way.provider.kind().as_str(), provider_message_id);
                self.record(change).await
            }
            Ok(SendResult::NotBegun) => self.record(Change::released(send, SendState::Fenced, SOON)).await,
            Err(refused) => self.refused(send, SendState::Fenced, way, refused, envelope, &mut permit).await,
        };
        Histogram::SmtpTransactionSeconds.record(started.elapsed().as_secs_f64(), [("lane", lane)]);
        result
    }

    /// The last gate. Everything but a pass drops the handover, which abandons it: nothing has left.
    async fn fence(
        &self,
        send: ClaimedSend,
        opened: Box<dyn PreparedSend>,
    ) -> Result<(ClaimedSend, Box<dyn PreparedSend>, Instant), Option<Recorded>> {
        match self.ledger.fence(send.clone()).await {
            Fence::Passed { at, metered_on } => Ok((send.metered(metered_on), opened, at)),
            Fence::Refused => Err(None),
            Fence::Failed => {
                drop(opened);
                Err(self.release_in_doubt(&send).await)
            }
        }
    }

    /// A commit that failed may have happened: the send is released from whichever of the two states it is in.
    async fn release_in_doubt(&self, send: &ClaimedSend) -> Option<Recorded> {
        drop(self.ledger.record(Change::released(send.clone(), SendState::Claimed, SOON)).await);
        self.record(Change::released(send.clone(), SendState::Fenced, SOON)).await
    }

    /// The capture provider: the gate is the same, and then nothing leaves.
    async fn capture(&self, send: ClaimedSend, address: &str, signed: &Signed, capture: &Capture) -> Option<Recorded> {
        match self.ledger.fence(send.clone()).await {
            Fence::Passed { metered_on, .. } => {
                let send = send.metered(metered_on);
                let (decision, answer) = sandbox::answer(address, send.attempt);
                let is_taken = decision.outcome == Outcome::Sent;
                if is_taken {
                    capture.note(&send, address, &signed.message, &self.tokens);
                }
                let change = verdict::change(send, SendState::Fenced, decision, answer, address, SOON);
                let change = change.by(sandbox::PROVIDER, None);
                self.record(if is_taken { change.capturing(signed.message.as_bytes()) } else { change }).await
            }
            Fence::Refused => None,
            Fence::Failed => self.release_in_doubt(&send).await,
        }
    }

    async fn refused(
        &self,
        send: ClaimedSend,
        from: SendState,
        way: &Way,
        refused: Refused,
        envelope: &Envelope,
        permit: &mut PacePermit,
    ) -> Option<Recorded> {
        let Refused { decision, answer, wait } = refused;
        debug_assert_ne!(answer.code, Some(POISON), "a poisonous answer");
        let class = class_of(decision);
        Counter::SmtpAnswersTotal
            .add(1, [("lane", send.batch.lane.as_str()), ("class", class.map_or("no_answer", Class::as_str))]);
        let heard = passage::feedback(decision, &answer);
        if heard == Feedback::Deferred {
            Counter::PaceDeferralsTotal.add(1, [("receiver", permit.family())]);
        }
        permit.heard(heard);
        let mut rest = SOON;
        match (decision.scope, class) {
            (_, None) => way.outage.doubt(),
            (Scope::Relay, Some(class)) => rest = way.outage.report(class, wait),
            (Scope::Domain | Scope::Recipient, _) => way.outage.over(),
            (Scope::Connection, _) => {}
        }
        let change = verdict::change(send, from, decision, answer, envelope.to.as_str(), rest);
        self.record(change.by(way.provider.kind().as_str(), None)).await
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
