//! Reads a subscription's current state for each attempt, and whether the event still has its body. Attempts that ask at the same time share
//! the statements. So a rotated secret, a changed URL, a pause and an erasure take effect for the first attempt after the API answered.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use runtime::{
    db::{ANSWER_TIMEOUT, within},
    plans::PreparedPool,
};
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
        match within(ANSWER_TIMEOUT, read(&by_key, &group)).await {
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
    let events: Vec<(SubscriptionKey, Uuid)> = group.iter().map(|query| (query.key, query.event_id)).collect();
    let read = tokio::try_join!(store::read_subscriptions(by_key, &keys), store::events_with_bodies(by_key, &events));
    let (states, bodies) = read?;
    Ok((states.into_iter().map(|row| ((row.tenant_id, row.id), Arc::new(row))).collect(), bodies))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use stage_rig::{Rig, until};

    use super::*;

    #[tokio::test]
    async fn a_read_that_postgres_does_not_answer_is_given_up() {
        let rig = Rig::new().await;
        let mut silence = rig.pool.begin().await.unwrap();
        sqlx::query("lock table webhook_subscriptions").execute(&mut *silence).await.unwrap();
        let (queries, asked) = mpsc::channel(1);
        tokio::spawn(answer_queries(PreparedPool::new(&rig.pool, 1), asked));
        let (answer, answered) = oneshot::channel();
        let query = AttemptQuery { key: (Uuid::nil(), Uuid::nil()), event_id: Uuid::nil(), answer };
        assert!(queries.send(query).await.is_ok());
        let waiting =
            "select count(*) from pg_locks where relation = 'webhook_subscriptions'::regclass and not granted";
        until("the read waits", async || rig.number(waiting).await > 0).await;
        tokio::time::pause();
        tokio::time::advance(ANSWER_TIMEOUT).await;
        tokio::time::resume();
        assert!(tokio::time::timeout(Duration::from_secs(5), answered).await.unwrap().is_err());
    }
}
