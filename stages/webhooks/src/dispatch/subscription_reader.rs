//! Reads a subscription's current state for each attempt. Attempts that ask at the same time share one statement. So a rotated
//! secret, a changed URL and a pause take effect for the first attempt after the API answered.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use runtime::plans::PreparedPool;
use tokio::sync::{mpsc, oneshot};

use super::store::{self, SubscriptionKey, SubscriptionState};

/// The most queries that one statement answers.
const GROUP_MAX: usize = 500;

/// The query of one attempt. It is dropped unanswered if Postgres is unavailable or the subscription does not exist.
pub(super) struct SubscriptionQuery {
    pub key: SubscriptionKey,
    pub answer: oneshot::Sender<Arc<SubscriptionState>>,
}

/// Answers queries until the channel is closed. The statement begins after the query was received, so it sees every change that was
/// committed before.
pub(super) async fn answer_queries(by_key: PreparedPool, mut queries: mpsc::Receiver<SubscriptionQuery>) {
    let mut group = Vec::with_capacity(GROUP_MAX);
    while queries.recv_many(&mut group, GROUP_MAX).await > 0 {
        let keys: Vec<SubscriptionKey> =
            group.iter().map(|query| query.key).collect::<BTreeSet<_>>().into_iter().collect();
        let states: HashMap<SubscriptionKey, Arc<SubscriptionState>> =
            match store::read_subscriptions(&by_key, &keys).await {
                Ok(rows) => rows.into_iter().map(|row| ((row.tenant_id, row.id), Arc::new(row))).collect(),
                Err(error) => {
                    let error = runtime::db::describe(&error);
                    tracing::warn!(error, "subscriptions cannot be read; their deliveries wait");
                    HashMap::new()
                }
            };
        for SubscriptionQuery { key, answer } in group.drain(..) {
            if let Some(row) = states.get(&key) {
                // An attempt that was cancelled meanwhile needs no answer.
                let _ = answer.send(Arc::clone(row));
            }
        }
    }
}
