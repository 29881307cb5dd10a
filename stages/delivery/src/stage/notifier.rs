//! Notifies callers that wait for a batch as soon as its sends are decided in the ledger. A slow recipient of another batch in the
//! same call does not delay the notification.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use runtime::Bus;
use schemas::{Rendered, messages::Decided};
use uuid::Uuid;

use super::throttling::Sendable;
use ledger::fence::Recorded;

/// The awaited batches among the inputs of the handler.
pub(crate) struct OutcomeNotifier<'a> {
    bus: Option<&'a Bus>,
    pending: HashMap<Uuid, PendingBatch<'a>>,
}

struct PendingBatch<'a> {
    tenant_id: Uuid,
    notify: &'a str,
    /// Sends of the batch that have no committed result yet.
    open: AtomicUsize,
}

impl<'a> OutcomeNotifier<'a> {
    pub fn new(bus: Option<&'a Bus>, inputs: &'a [Rendered], sendable: &[Sendable]) -> Self {
        let mut batches: HashMap<Uuid, PendingBatch<'a>> = HashMap::new();
        for input in inputs {
            if let Some(notify) = &input.notify {
                let pending = PendingBatch { tenant_id: input.tenant_id, notify, open: AtomicUsize::new(0) };
                batches.entry(input.batch_id).or_insert(pending);
            }
        }
        for send in sendable {
            if let Some(pending) = batches.get_mut(&send.due.send.batch.batch_id) {
                *pending.open.get_mut() += 1;
            }
        }
        Self { bus, pending: batches }
    }

    /// Takes the result of one send. If its batch is awaited, waits for the commit; the last send of the batch notifies the caller.
    pub async fn after(&self, batch: Uuid, recorded: Option<Recorded>) -> Option<Recorded> {
        let Some(pending) = self.pending.get(&batch) else { return recorded };
        let lost = match recorded {
            Some(recorded) => recorded.await.err().map(|_| Recorded::lost()),
            None => None,
        };
        if pending.open.fetch_sub(1, Ordering::Relaxed) == 1 && lost.is_none() {
            self.notify_decided(batch, pending).await;
        }
        lost
    }

    /// Notifies the callers of batches without a send to make.
    pub async fn notify_empty_batches(&self) {
        for (batch, pending) in &self.pending {
            if pending.open.load(Ordering::Relaxed) == 0 {
                self.notify_decided(*batch, pending).await;
            }
        }
    }

    async fn notify_decided(&self, batch_id: Uuid, pending: &PendingBatch<'a>) {
        if let Some(bus) = self.bus {
            bus.publish_reply(pending.notify, &Decided { tenant_id: pending.tenant_id, batch_id }).await;
        }
    }
}
