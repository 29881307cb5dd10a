//! The sweeps: raw events whose notification was lost, and pending facts that are due again.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use runner::{StageError, Sweep, SweepSchedule};
use runtime::{column, plans::PreparedPool};
use schemas::Signal;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    FactOutcome, Inbound, IncomingFact, absorb, count_facts,
    pending::{self, PendingFact, UNDECIDED, UNKNOWN},
    provider_name,
};
use crate::recorder::GroupRecorder;

/// Records raw events that are due, whether or not a notification came.
pub(crate) struct ProcessInbound(pub(crate) Inbound);

#[async_trait]
impl Sweep for ProcessInbound {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("process_inbound_events", Duration::from_secs(1))
            .when("exists (select from inbound_events where due_at <= now())")
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        self.0.take_due().await
    }
}

/// Pending facts of one transaction.
const PENDING_AT_ONCE: i64 = 500;

/// Tries pending facts again, with growing pauses, until they are dropped.
pub(crate) struct RetryPendingFacts {
    pub(crate) by_key: PreparedPool,
    pub(crate) shard: i16,
}

/// The key of a pending fact.
#[derive(Debug)]
pub(crate) struct PendingKey {
    tenant_id: Uuid,
    id: Uuid,
    reason: String,
}

/// A row of `pending_facts`.
struct PendingRow {
    key: PendingKey,
    item: IncomingFact,
    pending_since: DateTime<Utc>,
}

#[async_trait]
impl Sweep for RetryPendingFacts {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("retry_pending_facts", Duration::from_secs(1))
            .when("exists (select from pending_facts where due_at <= now())")
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut db = self.by_key.take().await?;
        let mut due =
            sqlx::query_file_as!(PendingKey, "queries/take_pending.sql", PENDING_AT_ONCE).fetch_all(&mut *db).await?;
        db.put_back();
        self.record_group(&mut due).await?;
        Ok(due.len() as u64)
    }
}

#[async_trait]
impl GroupRecorder for RetryPendingFacts {
    type Item = PendingKey;

    fn tenant(key: &PendingKey) -> Uuid {
        key.tenant_id
    }

    async fn record(&self, due: &[PendingKey]) -> sqlx::Result<()> {
        let mut tx = self.by_key.begin().await?;
        let (rows, unread) = lock(&mut tx, due).await?;
        let items: Vec<IncomingFact> = rows.iter().map(|row| row.item.clone()).collect();
        let outcomes = absorb::absorb(&mut tx, &items, self.shard).await?;
        // Its send is found and its outcome open: the fact stays pending, as evidence.
        let changed: Vec<PendingFact<'_>> = rows
            .iter()
            .zip(&outcomes)
            .filter(|(row, outcome)| row.key.reason == UNKNOWN && **outcome == FactOutcome::Undecided)
            .map(|(row, _)| PendingFact { item: &row.item, reason: UNDECIDED })
            .collect();
        pending::add_pending(&mut tx, &changed).await?;
        let keys: Vec<&PendingKey> = rows.iter().map(|row| &row.key).chain(&unread).collect();
        let waits = |(row, outcome): (&PendingRow, &FactOutcome)| match outcome {
            FactOutcome::Recorded => false,
            FactOutcome::Unknown => true,
            FactOutcome::Undecided => row.key.reason == UNDECIDED,
        };
        let waiting: Vec<bool> = rows.iter().zip(&outcomes).map(waits).chain(unread.iter().map(|_| true)).collect();
        let dropped = update_pending(&mut tx, &keys, &waiting).await?;
        tx.commit().await?;
        count(&rows, &outcomes);
        for fact in dropped {
            let provider = fact.provider.as_deref().map_or("link", provider_name);
            if unread.iter().any(|key| key.id == fact.id) {
                count_facts(provider, "dropped", 1);
                tracing::warn!(stage = "engagement", fact = %fact.id, provider, "dropped: this version does not know its kind");
            } else if fact.names_its_send {
                count_facts(provider, "dropped", 1);
                tracing::warn!(stage = "engagement", fact = %fact.id, provider, reason = UNKNOWN, "dropped: its send never came");
            } else {
                // Mail of another system that goes through the same account.
                count_facts(provider, "ignored", 1);
            }
        }
        Ok(())
    }

    async fn give_back(&self, due: &[PendingKey]) {
        let postponed = async {
            let mut db = self.by_key.take().await?;
            sqlx::query!(
                "update pending_facts p set due_at = now() + interval '2 seconds'
                 from unnest($1::uuid[], $2::uuid[], $3::text[]) as w (tenant_id, id, reason)
                 where p.tenant_id = w.tenant_id and p.id = w.id and p.reason = w.reason",
                &column(due, |key| key.tenant_id),
                &column(due, |key| key.id),
                &column(due, |key| key.reason.clone()),
            )
            .execute(&mut *db)
            .await?;
            db.put_back();
            Ok::<(), sqlx::Error>(())
        };
        if let Err(error) = postponed.await {
            tracing::debug!(
                stage = "engagement",
                error = runtime::db::describe(&error),
                "pending facts are due again in a minute"
            );
        }
    }

    async fn refuse(&self, key: &PendingKey, error: StageError) {
        tracing::error!(stage = "engagement", fact = %key.id, error = %error.chain(), "a pending fact cannot be recorded");
        // Its pauses grow, and it is dropped, as if its send was not known.
        let update = async {
            let mut tx = self.by_key.begin().await?;
            update_pending(&mut tx, &[key], &[true]).await?;
            tx.commit().await
        };
        if let Err(error) = update.await {
            tracing::debug!(stage = "engagement", error = runtime::db::describe(&error), "it is due again in a minute");
        }
    }
}

/// A pending fact that was dropped.
struct DroppedFact {
    id: Uuid,
    provider: Option<String>,
    names_its_send: bool,
}

/// Locks facts that were taken. Those of a kind that this version does not know are answered apart: they wait for the newer one that wrote
/// them, as long as facts wait for their sends.
async fn lock(db: &mut PgConnection, due: &[PendingKey]) -> sqlx::Result<(Vec<PendingRow>, Vec<PendingKey>)> {
    let rows = sqlx::query!(
        "select p.tenant_id, p.id, p.reason, p.send_id, p.provider, p.provider_message_id, p.signal, p.occurred_at, p.pending_since
         from unnest($1::uuid[], $2::uuid[], $3::text[]) as w (tenant_id, id, reason)
         join pending_facts p on p.tenant_id = w.tenant_id and p.id = w.id and p.reason = w.reason
         for update of p",
        &column(due, |key| key.tenant_id),
        &column(due, |key| key.id),
        &column(due, |key| key.reason.clone()),
    )
    .fetch_all(db)
    .await?;
    let (mut known, mut unread) = (Vec::with_capacity(rows.len()), Vec::new());
    for row in rows {
        let key = PendingKey { tenant_id: row.tenant_id, id: row.id, reason: row.reason };
        let Ok(signal) = row.signal.map(serde_json::from_value::<Signal>).transpose() else {
            unread.push(key);
            continue;
        };
        let item = IncomingFact {
            id: row.id,
            tenant_id: row.tenant_id,
            send_id: row.send_id,
            provider: row.provider.as_deref().map(provider_name),
            message_id: row.provider_message_id,
            at: row.occurred_at,
            signal,
            recipients: Vec::new(),
        };
        known.push(PendingRow { key, item, pending_since: row.pending_since });
    }
    Ok((known, unread))
}

/// Deletes pending facts that found their send, postpones the others, and drops those that waited too long. Answers the dropped ones.
async fn update_pending(
    db: &mut PgConnection,
    keys: &[&PendingKey],
    waiting: &[bool],
) -> sqlx::Result<Vec<DroppedFact>> {
    sqlx::query_file_as!(
        DroppedFact,
        "queries/update_pending.sql",
        &column(keys, |key| key.tenant_id),
        &column(keys, |key| key.id),
        &column(keys, |key| key.reason.clone()),
        waiting
    )
    .fetch_all(db)
    .await
}

fn count(rows: &[PendingRow], outcomes: &[FactOutcome]) {
    for (row, outcome) in rows.iter().zip(outcomes) {
        if row.key.reason == UNKNOWN && *outcome != FactOutcome::Unknown {
            let provider = row.item.provider.unwrap_or("link");
            count_facts(provider, "joined", 1);
            let waited_s = (Utc::now() - row.pending_since).num_seconds();
            tracing::debug!(stage = "engagement", fact = %row.item.id, provider, waited_s, "joined its send");
        }
    }
}
