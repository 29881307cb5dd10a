//! What a subscription is like at the moment of an attempt: every attempt asks the ledger, and those that ask at the same time share
//! one statement. So a secret that was rotated, an address that was changed and a pause hold from the moment they were answered.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use runtime::plans::PreparedPool;
use tokio::sync::{mpsc, oneshot};

use super::store::{self, Key, Looked};

/// Questions that one statement answers at most.
const GROUP_MAX: usize = 500;

/// One attempt asks. Not answered: the ledger is away, or has no such subscription.
pub(super) struct Question {
    pub key: Key,
    pub answer: oneshot::Sender<Arc<Looked>>,
}

/// Answers questions until nobody is left to ask. The statement begins after the question came, so it sees every change that was
/// committed before.
pub(super) async fn run(by_key: PreparedPool, mut questions: mpsc::Receiver<Question>) {
    let mut group = Vec::with_capacity(GROUP_MAX);
    while questions.recv_many(&mut group, GROUP_MAX).await > 0 {
        let keys: Vec<Key> = group.iter().map(|question| question.key).collect::<BTreeSet<_>>().into_iter().collect();
        let looked: HashMap<Key, Arc<Looked>> = match store::look(&by_key, &keys).await {
            Ok(rows) => rows.into_iter().map(|row| ((row.tenant_id, row.id), Arc::new(row))).collect(),
            Err(error) => {
                let error = runtime::db::describe(&error);
                tracing::warn!(error, "subscriptions cannot be read; their deliveries wait");
                HashMap::new()
            }
        };
        for Question { key, answer } in group.drain(..) {
            if let Some(row) = looked.get(&key) {
                // An attempt that was given up meanwhile needs no answer.
                let _ = answer.send(Arc::clone(row));
            }
        }
    }
}
