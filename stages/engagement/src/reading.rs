//! Reads untrusted bytes: off the reactor, few at a time, without a connection to Postgres. A fault costs only the piece that was read.
//! Inbound mail is read in a child process.

use std::sync::Arc;

use runtime::{
    Budget, Job, Reader, Spent,
    reader::{ReadFault, ReaderError},
};
use schemas::token::TokenKeys;
use tokio::sync::Semaphore;

use feedback::provider::{self, Malformed, ProviderEvent};
use feedback::report::{self, Arrival, MailReport};

/// Reads an inbound mail: two octets for where it came to and whether its sender is null, then its head.
pub(crate) const MAIL: Job = Job { kind: "inbound_mail", run: read_mail };

/// Reads an inbound mail. See [`report::read`].
pub(crate) async fn mail(
    reader: &Reader,
    head: &[u8],
    arrival: Arrival,
    null_sender: bool,
) -> Result<MailReport, ReaderError> {
    let input = [&[u8::from(arrival == Arrival::Feedback), u8::from(null_sender)], head].concat();
    let report = reader.read(&MAIL, input).await?;
    serde_json::from_slice(&report).map_err(|_| ReaderError::Undecodable)
}

fn read_mail(input: &[u8]) -> Result<Vec<u8>, ReadFault> {
    let [arrival, null_sender, head @ ..] = input else { return Err(ReadFault::Undecodable) };
    let arrival = if *arrival == 0 { Arrival::ReturnPath } else { Arrival::Feedback };
    let report = report::read(head, arrival, *null_sender != 0, &Budget::new(report::LIMITS))?;
    serde_json::to_vec(&report).map_err(|_| ReadFault::Undecodable)
}

/// Events read at the same time in this process.
static EVENTS: Semaphore = Semaphore::const_new(2);

/// Why an event was not read; another start may succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unread {
    /// It took too long.
    #[error(transparent)]
    Spent(Spent),
    /// The reading panicked.
    #[error("the reading ended without an answer")]
    Ended,
}

/// Reads a raw event of a provider, on a thread that may block. See [`provider::read`].
pub(crate) async fn event(
    provider: &'static str,
    raw: Vec<u8>,
    tokens: Arc<TokenKeys>,
) -> Result<Result<Vec<ProviderEvent>, Malformed>, Unread> {
    let _permit = EVENTS.acquire().await;
    let read = move || match provider::read(provider, &raw, &tokens, &Budget::new(provider::LIMITS)) {
        Err(malformed) if malformed.is_transient() => Err(Unread::Spent(Spent::Time)),
        told => Ok(told),
    };
    tokio::task::spawn_blocking(read).await.unwrap_or(Err(Unread::Ended))
}
