//! From slots to octets: splice, check, sign.

use std::{sync::Arc, time::SystemTime};

use runtime::panics::caught_here;
use schemas::{Lane, Rendered};
use tokio_util::sync::CancellationToken;

use super::{
    attachments::Room,
    passage::{Passage, Sendable},
    sources::{Part, Sources},
};
use ledger::fence::ClaimedSend;
use smtp::Message;

/// Sends prepared together: one job on a signing thread, a few milliseconds long.
pub(crate) const CHUNK: usize = 8;
/// Chunks in preparation at once, per message.
pub(crate) const AHEAD: usize = 3;

/// A send with its octets.
#[derive(Debug)]
pub(crate) struct Ready {
    pub send: ClaimedSend,
    /// Index of the message.
    pub input: usize,
    pub address: String,
    pub return_path_domain: Arc<str>,
    /// The way it takes to its receiver. `None`: it is captured.
    pub passage: Option<Passage>,
    /// `Err`: why it cannot be sent at all, a failure class.
    pub message: Result<Signed, &'static str>,
}

/// A message and its DKIM-Signature field, empty if the relay signs.
#[derive(Debug)]
pub(crate) struct Signed {
    pub message: Message,
    pub signature: String,
    /// Held for as long as the message is: for one with attachments.
    pub _room: Option<Room>,
}

/// Cuts sends into chunks. One with attachments is prepared alone: it waits for room, and must not hold others' meanwhile.
pub(crate) fn chunks(parts: &[Part], sendable: Vec<Sendable>) -> Vec<Vec<Sendable>> {
    let (heavy, light): (Vec<Sendable>, Vec<Sendable>) =
        sendable.into_iter().partition(|send| parts[send.input].skeleton.attachment_bytes() > 0);
    // The light ones first: they are through before the heavy ones have loaded anything.
    let mut light = light.into_iter();
    let next = || Some(light.by_ref().take(CHUNK).collect::<Vec<_>>()).filter(|chunk| !chunk.is_empty());
    std::iter::from_fn(next).chain(heavy.into_iter().map(|send| vec![send])).collect()
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
    for Sendable { send, input, recipient, passage } in chunk {
        let (rendered, part) = (&inputs[input], &parts[input]);
        let recipient = &rendered.recipients[recipient];
        urgent |= rendered.lane == Lane::Priority;
        let message =
            if stopping { Err("stopping") } else { splice(sources, rendered, part, &recipient.slots, shutdown).await };
        signers.push(part.signer.clone());
        ready.push(Ready {
            send,
            input,
            address: recipient.address.clone(),
            return_path_domain: Arc::from(rendered.return_path_domain.as_str()),
            passage,
            message: message.map(|(message, room)| Signed { message, signature: String::new(), _room: room }),
        });
    }
    if stopping || signers.iter().all(Option::is_none) {
        return ready;
    }
    let sign = move || {
        let now = SystemTime::now();
        for (ready, signer) in ready.iter_mut().zip(signers) {
            let (Ok(signed), Some(signer)) = (&mut ready.message, signer) else { continue };
            match caught_here("delivery", "handler", || signer.sign(&signed.message, now)) {
                Ok(Ok(signature)) => signed.signature = signature,
                Ok(Err(_)) | Err(_) => ready.message = Err("render"),
            }
        }
        ready
    };
    // The threads only stop with the process; the claims are then left to their lease.
    sources.threads.run(urgent, sign).await.unwrap_or_default()
}

/// A message that does not fit its skeleton, or is none, is a fault of rendering. One whose attachments cannot be had because the
/// process stops is about to be released.
async fn splice(
    sources: &Sources,
    rendered: &Rendered,
    part: &Part,
    slots: &[String],
    shutdown: &CancellationToken,
) -> Result<(Message, Option<Room>), &'static str> {
    let attachment_bytes = part.skeleton.attachment_bytes();
    if attachment_bytes == 0 {
        let message = part.skeleton.splice(slots).and_then(|octets| Message::new(octets).ok()).ok_or("render")?;
        return Ok((message, None));
    }
    let room = sources.attachments.room(part.skeleton.text_bytes() + attachment_bytes).await.ok_or("render")?;
    let loaded = sources.attachments.load(rendered.tenant_id, rendered.batch_id, shutdown).await.ok_or("render")?;
    let (skeleton, slots) = (part.skeleton.clone(), slots.to_vec());
    // Copying and checking twenty megabytes is not for the reactor.
    let spliced = tokio::task::spawn_blocking(move || {
        skeleton.splice_with(&slots, &loaded).and_then(|octets| Message::new(octets).ok())
    });
    let message = spliced.await.ok().flatten().ok_or("render")?;
    Ok((message, Some(room)))
}
