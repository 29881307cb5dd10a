//! Reads a subscription's current state for each attempt, and whether the event still has its body. Attempts that ask at the same time share
//! the statements. So a rotated secret, a changed URL, a pause and an erasure take effect for the first attempt after the API answered.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use runtime::plans::PreparedPool;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::store::{self, SubscriptionKey, SubscriptionState};

/// The most queries that the statements answer at once.
const GROUP_MAX: usize = 500;

/// The query of one attempt. It is dropped unanswered if Postgres is unavailable or the subscription does not exist.
pub(super) struct AttemptQuery {
    pub key: SubscriptionKey,
    pub event_id: Uuid,
    /// The subscription, and whether the event has a body.
    pub answer: oneshot::Sender<(Arc<SubscriptionState>, bool)>,
}

/// Answers queries until the channel is closed. The statements begin after the query was received, so they see every change that was
/// committed before.
pub(super) async fn answer_queries(by_key: PreparedPool, mut queries: mpsc::Receiver<AttemptQuery>) {
    let mut group = Vec::with_capacity(GROUP_MAX);
    while queries.recv_many(&mut group, GROUP_MAX).await > 0 {
        match read(&by_key, &group).await {
            Ok((states, bodies)) => {
                for AttemptQuery { key, event_id, answer } in group.drain(..) {
                    if let Some(state) = states.get(&key) {
                        // An attempt that was cancelled meanwhile needs no answer.
                        let _ = answer.send((Arc::clone(state), bodies.contains(&(key.1, event_id))));
                    }
                }
            }
            Err(error) => {
                let error = runtime::db::describe(&error);
                tracing::warn!(error, "subscriptions cannot be read; their deliveries wait");
                group.clear();
            }
        }
    }
}

/// The subscriptions of a group, and which of their events have a body: subscription and event.
async fn read(
    by_key: &PreparedPool,
    group: &[AttemptQuery],
) -> sqlx::Result<(HashMap<SubscriptionKey, Arc<SubscriptionState>>, HashSet<(Uuid, Uuid)>)> {
    let keys: Vec<SubscriptionKey> = group.iter().map(|query| query.key).collect::<BTreeSet<_>>().into_iter().collect();
    let states = store::read_subscriptions(by_key, &keys).await?;
    let events: Vec<(SubscriptionKey, Uuid)> = group.iter().map(|query| (query.key, query.event_id)).collect();
    let bodies = store::events_with_bodies(by_key, &events).await?;
    Ok((states.into_iter().map(|row| ((row.tenant_id, row.id), Arc::new(row))).collect(), bodies))
}
