//! Callers that wait for mail, at no cost for mail that no one waits for.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::oneshot;

use crate::sink::tally::lock;

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// So many mails in all.
    Accepted(u64),
    /// So many for the address with this key.
    Address { key: u64, count: u32 },
}

#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// Set while the list is not empty.
    any: AtomicBool,
    list: Mutex<Vec<(Until, oneshot::Sender<()>)>>,
}

impl Waiters {
    /// Registers a caller. It must look at the counts *after* this: mail before it is not reported.
    pub(crate) fn register(&self, until: Until) -> oneshot::Receiver<()> {
        let (reached, wait) = oneshot::channel();
        let mut list = lock(&self.list);
        list.retain(|(_, waiting)| !waiting.is_closed());
        list.push((until, reached));
        self.any.store(true, Ordering::SeqCst);
        wait
    }

    /// Wakes those for whom `is_reached` holds now.
    pub(crate) fn check(&self, is_reached: impl Fn(Until) -> bool) {
        // Counts are written before this reads; a caller registers before it reads counts: one of both sees the other.
        if !self.any.load(Ordering::SeqCst) {
            return;
        }
        let mut list = lock(&self.list);
        for (_, reached) in list.extract_if(.., |(until, _)| is_reached(*until)) {
            // A caller that left does not mind.
            let _ = reached.send(());
        }
        self.any.store(!list.is_empty(), Ordering::SeqCst);
    }
}
