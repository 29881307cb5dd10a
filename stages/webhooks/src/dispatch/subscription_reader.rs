//! Reads a subscription's current state for attempts, and whether their events still have their bodies. Attempts that ask at the same time
//! share the statements. So a rotated secret, a changed URL, a pause and an erasure take effect for the first attempt after the API answered;
//! what was checked just before then may still be posted in the same moment.

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
    pub events: Vec<Uuid>,
    pub answer: oneshot::Sender<(Arc<SubscriptionState>, Bodies)>,
}

/// The events that have a body, with those of the attempts that asked at the same time: subscription and event.
pub(super) type Bodies = Arc<HashSet<(Uuid, Uuid)>>;

/// Answers queries until the channel is closed. The statements begin after the query was received, so they see every change that was
/// committed before.
pub(super) async fn answer_queries(by_key: PreparedPool, mut queries: mpsc::Receiver<AttemptQuery>) {
    let mut group = Vec::with_capacity(GROUP_MAX);
    while queries.recv_many(&mut group, GROUP_MAX).await > 0 {
        match within(ANSWER_TIMEOUT, read(&by_key, &group)).await {
            Ok((states, bodies)) => {
                for AttemptQuery { key, answer, .. } in group.drain(..) {
                    if let Some(state) = states.get(&key) {
                        // An attempt that was cancelled meanwhile needs no answer.
                        let _ = answer.send((Arc::clone(state), Arc::clone(&bodies)));
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

/// The subscriptions of a group, and which of their events have a body.
async fn read(
    by_key: &PreparedPool,
    group: &[AttemptQuery],
) -> sqlx::Result<(HashMap<SubscriptionKey, Arc<SubscriptionState>>, Bodies)> {
    let keys: Vec<SubscriptionKey> = group.iter().map(|query| query.key).collect::<BTreeSet<_>>().into_iter().collect();
    // Attempts of one subscription ask for the same events that come next.
    let events = group.iter().flat_map(|query| query.events.iter().map(|event| (query.key, *event)));
    let events: Vec<(SubscriptionKey, Uuid)> = events.collect::<BTreeSet<_>>().into_iter().collect();
    let read = tokio::try_join!(store::read_subscriptions(by_key, &keys), store::events_with_bodies(by_key, &events));
    let (states, bodies) = read?;
    Ok((states.into_iter().map(|row| ((row.tenant_id, row.id), Arc::new(row))).collect(), Arc::new(bodies)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;
    use sqlx::AssertSqlSafe;
    use stage_rig::{Rig, rows_in_vain, scans, until};

    use super::*;

    #[tokio::test]
    async fn bodies_are_read_by_key_in_tables_without_statistics() {
        let rig = Rig::new().await;
        let (tenant, subscription) = (rig.tenant().await.id, Uuid::now_v7());
        let events: Vec<Uuid> = sqlx::query_scalar(
            "with s as (
                 insert into webhook_subscriptions (tenant_id, id, product, environment, url, events, secret)
                 values ($1, $2, 'crm', 'production', 'https://x.example/', '{email.sent}', '')
             ), e as (
                 insert into webhook_events (tenant_id, product, id, body)
                 select $1, 'crm', gen_random_uuid(), '' from generate_series(1, 5000) returning id
             )
             select id from e limit 100",
        )
        .bind(tenant)
        .bind(subscription)
        .fetch_all(&rig.pool)
        .await
        .unwrap();
        let sql = concat!("explain (analyze, format json)\n", include_str!("../../queries/events_with_bodies.sql"));
        let plan: Value = sqlx::query_scalar(AssertSqlSafe(sql))
            .bind(vec![tenant; events.len()])
            .bind(vec![subscription; events.len()])
            .bind(&events)
            .fetch_one(&mut *PreparedPool::new(&rig.pool, 1).begin().await.unwrap())
            .await
            .unwrap();
        let in_vain = rows_in_vain(&plan);
        assert!(in_vain < 1_000.0, "{in_vain} rows were looked at in vain: {plan:#}");
        assert_eq!(scans(&plan, "webhook_subscriptions"), 1, "one subscription, however many events: {plan:#}");
    }

    #[tokio::test]
    async fn a_read_that_postgres_does_not_answer_is_given_up() {
        let rig = Rig::new().await;
        let mut silence = rig.pool.begin().await.unwrap();
        sqlx::query("lock table webhook_subscriptions").execute(&mut *silence).await.unwrap();
        let (queries, asked) = mpsc::channel(1);
        tokio::spawn(answer_queries(PreparedPool::new(&rig.pool, 1), asked));
        let (answer, answered) = oneshot::channel();
        let query = AttemptQuery { key: (Uuid::nil(), Uuid::nil()), events: vec![Uuid::nil()], answer };
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
