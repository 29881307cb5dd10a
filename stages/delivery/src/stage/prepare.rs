//! From placeholder values to bytes: splice, check, sign.

use std::time::SystemTime;

use runtime::panics::caught_here;
use schemas::{Lane, PlaceholderValues};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::{
    SendContext,
    attachments::ReservedMemory,
    routes::ProviderRoute,
    sources::{MessageSource, SourceCache},
    throttling::Sendable,
};
use ledger::owed::DueAttempt;
use smtp::SmtpMessage;

/// Sends prepared together: one job on a signing thread, a few milliseconds long.
pub(crate) const CHUNK: usize = 8;
/// Chunks in preparation at once, per message.
pub(crate) const AHEAD: usize = 3;

/// A send whose message is ready.
#[derive(Debug)]
pub(crate) struct ReadySend {
    pub sendable: Sendable,
    /// `Err`: the failure class of a message that cannot be sent.
    pub message: Result<SignedMessage, &'static str>,
    /// Its share of the campaign mails that may be in memory, until it is dropped.
    pub _in_memory: Option<OwnedSemaphorePermit>,
}

/// A message and its DKIM-Signature field, empty if the relay signs.
#[derive(Debug)]
pub(crate) struct SignedMessage {
    pub message: SmtpMessage,
    pub signature: String,
    /// Memory reserved for a message with attachments, until the message is dropped.
    pub _memory: Option<ReservedMemory>,
}

/// Cuts sends into chunks. A send with attachments is prepared alone: it waits for memory and must not delay others.
pub(crate) fn chunks(parts: &[MessageSource], sendable: Vec<Sendable>) -> Vec<Vec<Sendable>> {
    let (heavy, light): (Vec<Sendable>, Vec<Sendable>) =
        sendable.into_iter().partition(|send| parts[send.due.input].skeleton.attachment_bytes() > 0);
    // Small messages first: they are done before the large ones have loaded their attachments.
    let mut light = light.into_iter();
    let next = || Some(light.by_ref().take(CHUNK).collect::<Vec<_>>()).filter(|chunk| !chunk.is_empty());
    std::iter::from_fn(next).chain(heavy.into_iter().map(|send| vec![send])).collect()
}

/// Prepares a chunk. A message that cannot be built or signed fails alone. During shutdown nothing is prepared: the sends
/// are about to be released.
pub(crate) async fn prepare(
    sources: &SourceCache,
    context: &SendContext<'_>,
    chunk: Vec<Sendable>,
    shutdown: &CancellationToken,
) -> Vec<ReadySend> {
    let mut in_memory = reserve_chunk(context, &chunk).await;
    let stopping = shutdown.is_cancelled();
    let mut ready = Vec::with_capacity(chunk.len());
    let mut urgent = false;
    let mut signers = Vec::with_capacity(chunk.len());
    for sendable in chunk {
        let DueAttempt { send, input, recipient } = &sendable.due;
        let (rendered, part) = (&context.inputs[*input], &context.parts[*input]);
        urgent |= rendered.lane == Lane::Priority;
        let values = PlaceholderValues { due_at: send.due_at, ..rendered.values(&rendered.recipients[*recipient]) };
        let route = &context.routes[*input];
        let message = if stopping { Err("stopping") } else { splice(sources, part, values, route, shutdown).await };
        signers.push(part.signer.clone());
        ready.push(ReadySend {
            sendable,
            message: message.map(|(message, memory)| SignedMessage {
                message,
                signature: String::new(),
                _memory: memory,
            }),
            _in_memory: in_memory.as_mut().and_then(|permits| permits.split(1)),
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
                Ok(Some(signature)) => signed.signature = signature,
                Ok(None) | Err(_) => ready.message = Err("render"),
            }
        }
        ready
    };
    // The threads only stop with the process; the sends are still owed.
    sources.threads.run(urgent, sign).await.unwrap_or_default()
}

/// Waits until the mails of a chunk may be in memory: for all of them at once, so that no two chunks wait for each other. Campaign mails
/// that are handled together have one route.
async fn reserve_chunk(context: &SendContext<'_>, chunk: &[Sendable]) -> Option<OwnedSemaphorePermit> {
    let limit = context.routes[chunk.first()?.due.input].in_memory.as_ref()?;
    limit.clone().acquire_many_owned(u32::try_from(chunk.len()).ok()?).await.ok()
}

/// Builds one message. A failure is a fault of rendering, except for attachments that cannot be loaded because the process
/// stops: that send is about to be released.
async fn splice(
    sources: &SourceCache,
    part: &MessageSource,
    values: PlaceholderValues,
    route: &ProviderRoute,
    shutdown: &CancellationToken,
) -> Result<(SmtpMessage, Option<ReservedMemory>), &'static str> {
    let attachment_bytes = part.skeleton.attachment_bytes();
    if attachment_bytes == 0 {
        let spliced = part.skeleton.splice(&values, &sources.tokens, &[]);
        let message = spliced.and_then(SmtpMessage::new).ok_or("render")?;
        return Ok((message, None));
    }
    let bytes = part.skeleton.static_bytes() + attachment_bytes;
    let memory = sources.attachments.reserve_memory(bytes, route).await.ok_or("render")?;
    let loaded =
        sources.attachments.load_attachments(values.tenant_id, values.batch_id, shutdown).await.ok_or("render")?;
    let (skeleton, tokens) = (part.skeleton.clone(), sources.tokens.clone());
    // Copying and checking twenty megabytes would block the reactor.
    let spliced =
        tokio::task::spawn_blocking(move || skeleton.splice(&values, &tokens, &loaded).and_then(SmtpMessage::new));
    let message = spliced.await.ok().flatten().ok_or("render")?;
    Ok((message, Some(memory)))
}
