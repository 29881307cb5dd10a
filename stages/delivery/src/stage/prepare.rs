//! From slots to octets: splice, check, sign.

use std::{sync::Arc, time::SystemTime};

use schemas::{Lane, Rendered};

use tokio_util::sync::CancellationToken;

use super::{
    claim::Sendable,
    ledger::Held,
    sources::{Part, Sources},
};
use crate::smtp::Message;

/// Sends prepared together: one job on a signing thread, a few milliseconds long.
pub(crate) const CHUNK: usize = 8;
/// Chunks in preparation at once, per message.
pub(crate) const AHEAD: usize = 3;

/// A send with its octets.
#[derive(Debug)]
pub(crate) struct Ready {
    pub send: Held,
    pub address: String,
    pub return_path_domain: Arc<str>,
    /// `Err`: why it cannot be sent at all, a failure class.
    pub message: Result<Signed, &'static str>,
}

/// A message and its DKIM-Signature field, empty if the relay signs.
#[derive(Debug)]
pub(crate) struct Signed {
    pub message: Message,
    pub signature: String,
}

/// Prepares a chunk. A message that cannot be made or signed fails alone. While shutting down nothing is prepared: the sends
/// are about to be released.
pub(crate) async fn prepare(
    sources: &Sources,
    inputs: &[Rendered],
    parts: &[Part],
    chunk: Vec<Sendable>,
    shutdown: &CancellationToken,
) -> Vec<Ready> {
    let stopping = shutdown.is_cancelled();
    let mut ready = Vec::with_capacity(chunk.len());
    let mut urgent = false;
    let mut signers = Vec::with_capacity(chunk.len());
    for Sendable { send, input, recipient } in chunk {
        let (rendered, part) = (&inputs[input], &parts[input]);
        let recipient = &rendered.recipients[recipient];
        urgent |= rendered.lane == Lane::Priority;
        let message = if stopping { Err("stopping") } else { splice(part, &recipient.slots) };
        signers.push(part.signer.clone());
        ready.push(Ready {
            send,
            address: recipient.address.clone(),
            return_path_domain: Arc::from(rendered.return_path_domain.as_str()),
            message: message.map(|message| Signed { message, signature: String::new() }),
        });
    }
    if stopping || signers.iter().all(Option::is_none) {
        return ready;
    }
    let sign = move || {
        let now = SystemTime::now();
        for (ready, signer) in ready.iter_mut().zip(signers) {
            let (Ok(signed), Some(signer)) = (&mut ready.message, signer) else { continue };
            match signer.sign(&signed.message, now) {
                Ok(signature) => signed.signature = signature,
                Err(_) => ready.message = Err("render"),
            }
        }
        ready
    };
    // The threads only stop with the process; the claims are then left to their lease.
    sources.threads.run(urgent, sign).await.unwrap_or_default()
}

/// A message that does not fit its skeleton, or is none, is a fault of rendering.
fn splice(part: &Part, slots: &[String]) -> Result<Message, &'static str> {
    part.skeleton.splice(slots).and_then(|octets| Message::new(octets).ok()).ok_or("render")
}
