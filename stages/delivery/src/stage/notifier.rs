//! Telling those who wait for a batch that its sends are decided, as soon as the ledger says so: one slow recipient of another
//! message in hand must not keep them waiting.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use runtime::Bus;
use schemas::{Rendered, messages::Decided};
use uuid::Uuid;

use super::passage::Sendable;
use ledger::fence::Recorded;

/// The batches in hand that somebody waits for.
pub(crate) struct OutcomeNotifier<'a> {
    bus: Option<&'a Bus>,
    bells: HashMap<Uuid, Bell<'a>>,
}

struct Bell<'a> {
    tenant_id: Uuid,
    notify: &'a str,
    /// Sends of the batch that have no committed result yet.
    open: AtomicUsize,
}

impl<'a> OutcomeNotifier<'a> {
    pub fn new(bus: Option<&'a Bus>, inputs: &'a [Rendered], sendable: &[Sendable]) -> Self {
        let mut bells: HashMap<Uuid, Bell<'a>> = HashMap::new();
        for input in inputs {
            if let Some(notify) = &input.notify {
                let bell = Bell { tenant_id: input.tenant_id, notify, open: AtomicUsize::new(0) };
                bells.entry(input.batch_id).or_insert(bell);
            }
        }
        for send in sendable {
            if let Some(bell) = bells.get_mut(&send.send.batch.batch_id) {
                *bell.open.get_mut() += 1;
            }
        }
        Self { bus, bells }
    }

    /// Takes the result of one send. If somebody waits for its batch, the commit is awaited here, and the last send rings.
    pub async fn after(&self, batch: Uuid, recorded: Option<Recorded>) -> Option<Recorded> {
        let Some(bell) = self.bells.get(&batch) else { return recorded };
        let lost = match recorded {
            Some(recorded) => recorded.await.err().map(|_| Recorded::lost()),
            None => None,
        };
        if bell.open.fetch_sub(1, Ordering::Relaxed) == 1 && lost.is_none() {
            self.ring(batch, bell).await;
        }
        lost
    }

    /// Rings for batches of which nothing was to be sent.
    pub async fn ring_idle(&self) {
        for (batch, bell) in &self.bells {
            if bell.open.load(Ordering::Relaxed) == 0 {
                self.ring(*batch, bell).await;
            }
        }
    }

    async fn ring(&self, batch_id: Uuid, bell: &Bell<'a>) {
        if let Some(bus) = self.bus {
            bus.tell(bell.notify, &Decided { tenant_id: bell.tenant_id, batch_id }).await;
        }
    }
}
