//! Where strangers' bytes are read: away from the reactor, few at a time, with no connection to Postgres in hand. What goes wrong
//! there costs the one piece that was read.

use std::panic::{AssertUnwindSafe, catch_unwind};

use runtime::{Budget, Spent};
use tokio::sync::Semaphore;

use crate::{
    provider::{self, Malformed, Told},
    report::{self, Report, Road},
};

/// Readings at the same time in this process.
static PERMITS: Semaphore = Semaphore::const_new(2);

/// Why something was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReadFault {
    /// It passes the bounds of a reading.
    #[error(transparent)]
    Spent(#[from] Spent),
    /// The reader panicked.
    #[error("the reader ended without an answer")]
    Ended,
}

impl ReadFault {
    /// True if another attempt may end otherwise.
    pub(crate) fn is_transient(self) -> bool {
        match self {
            Self::Spent(spent) => spent.is_transient(),
            Self::Ended => true,
        }
    }
}

/// Reads a mail that came back. See [`report::read`].
pub(crate) async fn mail(head: Vec<u8>, road: Road, null_sender: bool) -> (Vec<u8>, Result<Report, ReadFault>) {
    apart(head, move |head| Ok(report::read(head, road, null_sender, &Budget::new(report::LIMITS))?)).await
}

/// Reads a raw event of a provider. See [`provider::read`].
pub(crate) async fn event(provider: &'static str, raw: Vec<u8>) -> Result<Result<Vec<Told>, Malformed>, ReadFault> {
    let read = move |raw: &[u8]| match provider::read(provider, raw, &Budget::new(provider::LIMITS)) {
        Err(malformed) if malformed.is_transient() => Err(ReadFault::Spent(Spent::Time)),
        told => Ok(told),
    };
    apart(raw, read).await.1
}

/// Runs `read` on a thread that may block, and gives the bytes back.
async fn apart<T: Send + 'static>(
    bytes: Vec<u8>,
    read: impl FnOnce(&[u8]) -> Result<T, ReadFault> + Send + 'static,
) -> (Vec<u8>, Result<T, ReadFault>) {
    let _permit = PERMITS.acquire().await;
    let work = tokio::task::spawn_blocking(move || {
        let told = catch_unwind(AssertUnwindSafe(|| read(&bytes))).unwrap_or(Err(ReadFault::Ended));
        (bytes, told)
    });
    work.await.unwrap_or_else(|_| (Vec::new(), Err(ReadFault::Ended)))
}
