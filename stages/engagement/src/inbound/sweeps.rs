//! The sweeps: raw events whose notification was lost, and pending facts that are due again.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use runner::{StageError, Sweep, SweepSchedule};
use runtime::plans::PreparedPool;
use schemas::Signal;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    FactOutcome, Inbound, IncomingFact,
    absorb::{self, FactOutcomes},
    count_facts,
    pending::{self, PendingFact, UNDECIDED, UNKNOWN},
    provider_name,
};

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

/// A row of `pending_facts`.
struct PendingRow {
    item: IncomingFact,
    reason: String,
    pending_since: DateTime<Utc>,
}

#[async_trait]
impl Sweep for RetryPendingFacts {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("retry_pending_facts", Duration::from_secs(1))
            .when("exists (select from pending_facts where due_at <= now())")
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut tx = self.by_key.begin().await?;
        let rows = due(&mut tx).await?;
        if rows.is_empty() {
            return Ok(0);
        }
        let items: Vec<IncomingFact> = rows.iter().map(|row| row.item.clone()).collect();
        let outcomes = absorb::absorb(&mut tx, &items, self.shard).await?;
        // Its send is found and its outcome open: the fact stays pending, as evidence.
        let changed: Vec<PendingFact<'_>> = rows
            .iter()
            .zip(&outcomes.each)
            .filter(|(row, outcome)| row.reason == UNKNOWN && **outcome == FactOutcome::Undecided)
            .map(|(row, _)| PendingFact { item: &row.item, reason: UNDECIDED })
            .collect();
        pending::add_pending(&mut tx, &changed).await?;
        let dropped = update_pending(&mut tx, &rows, &outcomes).await?;
        tx.commit().await?;
        count(&rows, &outcomes);
        for (id, provider) in dropped {
            let provider = provider.as_deref().map_or("link", provider_name);
            count_facts(provider, "dropped", 1);
            tracing::warn!(stage = "engagement", fact = %id, provider, reason = UNKNOWN, "dropped: its send never came");
        }
        Ok(rows.len() as u64)
    }
}

async fn due(db: &mut PgConnection) -> sqlx::Result<Vec<PendingRow>> {
    let rows = sqlx::query!(
        "select tenant_id, id, reason, send_id, provider, provider_message_id, signal, occurred_at, pending_since
         from pending_facts where due_at <= now() order by due_at, id limit $1 for update skip locked",
        PENDING_AT_ONCE
    )
    .fetch_all(db)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| PendingRow {
            item: IncomingFact {
                id: row.id,
                tenant_id: row.tenant_id,
                send_id: row.send_id,
                provider: row.provider.as_deref().map(provider_name),
                message_id: row.provider_message_id,
                at: row.occurred_at,
                signal: row.signal.and_then(|signal| serde_json::from_value::<Signal>(signal).ok()),
                recipients: Vec::new(),
            },
            reason: row.reason,
            pending_since: row.pending_since,
        })
        .collect())
}

/// Deletes pending facts that found their send, postpones the others, and drops those that waited too long. Answers the dropped ones, with
/// their providers.
async fn update_pending(
    db: &mut PgConnection,
    rows: &[PendingRow],
    outcomes: &FactOutcomes,
) -> sqlx::Result<Vec<(Uuid, Option<String>)>> {
    let waits = |row: &PendingRow, outcome: &FactOutcome| match outcome {
        FactOutcome::Recorded => false,
        FactOutcome::Unknown => true,
        FactOutcome::Undecided => row.reason == UNDECIDED,
    };
    let tenants: Vec<Uuid> = rows.iter().map(|row| row.item.tenant_id).collect();
    let ids: Vec<Uuid> = rows.iter().map(|row| row.item.id).collect();
    let reasons: Vec<String> = rows.iter().map(|row| row.reason.clone()).collect();
    let waiting: Vec<bool> = rows.iter().zip(&outcomes.each).map(|(row, outcome)| waits(row, outcome)).collect();
    let dropped =
        sqlx::query_file!("queries/update_pending.sql", &tenants, &ids, &reasons, &waiting).fetch_all(db).await?;
    Ok(dropped.into_iter().map(|row| (row.id, row.provider)).collect())
}

fn count(rows: &[PendingRow], outcomes: &FactOutcomes) {
    for (row, outcome) in rows.iter().zip(&outcomes.each) {
        if row.reason == UNKNOWN && *outcome != FactOutcome::Unknown {
            let provider = row.item.provider.unwrap_or("link");
            count_facts(provider, "joined", 1);
            let waited_s = (Utc::now() - row.pending_since).num_seconds();
            tracing::debug!(stage = "engagement", fact = %row.item.id, provider, waited_s, "joined its send");
        }
    }
}
