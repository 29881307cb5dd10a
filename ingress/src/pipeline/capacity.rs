//! Memory for parsing large bodies: shared by all requests, and by product.

use std::sync::LazyLock;

use super::{
    body::{BODY_MAX_BYTES, IMPORT_BODY_MAX_BYTES, MESSAGE_BODY_MAX_BYTES},
    json,
    shares::{Share, Shares},
};

/// Memory for what is parsed from large bodies at a time, beside the bodies themselves: of each product one of the largest, or several
/// smaller ones, and twice that in all. Other requests wait with their bodies. Imports and messages have their own, so that no message
/// waits for an import. So do messages that are being stored, so that a wait for Postgres delays no parsing, and work on a body (a template
/// rendered over it), which takes longest and holds the body more than once.
pub(super) static READ_IMPORTS: LazyLock<ParseCapacity> = LazyLock::new(|| ParseCapacity::new(IMPORT_BODY_MAX_BYTES));
pub(super) static READ_MESSAGES: LazyLock<ParseCapacity> = LazyLock::new(|| ParseCapacity::new(MESSAGE_BODY_MAX_BYTES));
pub(super) static STORE_MESSAGES: LazyLock<ParseCapacity> =
    LazyLock::new(|| ParseCapacity::new(MESSAGE_BODY_MAX_BYTES));
pub(super) static WORK_ON_BODIES: LazyLock<ParseCapacity> = LazyLock::new(|| ParseCapacity::new(8 * BODY_MAX_BYTES));

/// Limits the memory for what is parsed from bodies, in KiB.
pub(super) struct ParseCapacity(Shares);

impl ParseCapacity {
    /// So much for one product, and twice that in all.
    fn new(bytes: usize) -> Self {
        Self(Shares::new(2 * bytes / 1024, bytes / 1024))
    }

    /// Waits until a body of this [`json::weight`] may be parsed. A small one needs no permit; one above the product's share takes all of
    /// the share.
    pub(super) async fn acquire(&self, weight: usize, product: &str) -> Option<Share> {
        if weight <= BODY_MAX_BYTES {
            return None;
        }
        Some(self.0.take(product, weight / 1024).await)
    }
}

/// Waits until a call over the bus may be parsed before it becomes a request.
pub(crate) async fn may_read_call(body: &[u8], product: &str) -> Option<Share> {
    READ_MESSAGES.acquire(json::weight(body), product).await
}
