//! What looks by itself: raw events nobody rang for, and facts that waited long enough to be looked at again.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use runner::{StageError, Sweep};
use runtime::plans;
use schemas::Signal;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::{
    Fate, Inbound, Item,
    absorb::{self, Fates},
    count_facts,
    park::{self, UNDECIDED, UNKNOWN, Waiting},
    word,
};

/// Raw events that are due, whether or not anybody rang.
pub(crate) struct Overdue(pub(crate) Inbound);

#[async_trait]
impl Sweep for Overdue {
    fn name(&self) -> &'static str {
        "inbound_events"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        self.0.turn().await
    }
}

/// Parked facts of one transaction.
const PARKED: i64 = 500;

/// Facts that wait for their send, looked at again with growing pauses until they are given up.
pub(crate) struct Parked {
    pub(crate) pool: PgPool,
    pub(crate) shard: i16,
}

/// A parked fact.
struct Row {
    item: Item,
    reason: String,
    parked_at: DateTime<Utc>,
}

#[async_trait]
impl Sweep for Parked {
    fn name(&self) -> &'static str {
        "parked_facts"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut tx = self.pool.begin_with(plans::BEGIN_BY_KEY).await?;
        let rows = due(&mut tx).await?;
        if rows.is_empty() {
            return Ok(0);
        }
        let items: Vec<Item> = rows.iter().map(|row| row.item.clone()).collect();
        let fates = absorb::absorb(&mut tx, &items, self.shard).await?;
        // Found, and now evidence for a send whose outcome is open: waits on, as that.
        let changed: Vec<Waiting<'_>> = rows
            .iter()
            .zip(&fates.each)
            .filter(|(row, fate)| row.reason == UNKNOWN && **fate == Fate::Undecided)
            .map(|(row, _)| Waiting { item: &row.item, reason: UNDECIDED })
            .collect();
        park::park(&mut tx, &changed).await?;
        let dropped = settle(&mut tx, &rows, &fates).await?;
        tx.commit().await?;
        count(&rows, &fates);
        for (id, provider) in dropped {
            let provider = provider.as_deref().map_or("link", word);
            count_facts(provider, "dropped", 1);
            tracing::warn!(stage = "engagement", fact = %id, provider, reason = UNKNOWN, "given up: its send never came");
        }
        Ok(rows.len() as u64)
    }
}

async fn due(db: &mut PgConnection) -> sqlx::Result<Vec<Row>> {
    let rows = sqlx::query!(
        "select tenant_id, id, reason, send_id, provider, provider_message_id, signal, occurred_at, parked_at
         from parked_facts where due_at <= now() order by due_at, id limit $1 for update skip locked",
        PARKED
    )
    .fetch_all(db)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| Row {
            item: Item {
                id: row.id,
                tenant_id: row.tenant_id,
                send_id: row.send_id,
                provider: row.provider.as_deref().map(word),
                message_id: row.provider_message_id,
                at: row.occurred_at,
                signal: row.signal.and_then(|signal| serde_json::from_value::<Signal>(signal).ok()),
            },
            reason: row.reason,
            parked_at: row.parked_at,
        })
        .collect())
}

/// Takes away what has found its send, puts off what has not, and gives up what waited for too long. Answers what was given up,
/// with who told it.
async fn settle(db: &mut PgConnection, rows: &[Row], fates: &Fates) -> sqlx::Result<Vec<(Uuid, Option<String>)>> {
    let waits = |row: &Row, fate: &Fate| match fate {
        Fate::Recorded => false,
        Fate::Unknown => true,
        Fate::Undecided => row.reason == UNDECIDED,
    };
    let tenants: Vec<Uuid> = rows.iter().map(|row| row.item.tenant_id).collect();
    let ids: Vec<Uuid> = rows.iter().map(|row| row.item.id).collect();
    let reasons: Vec<String> = rows.iter().map(|row| row.reason.clone()).collect();
    let waiting: Vec<bool> = rows.iter().zip(&fates.each).map(|(row, fate)| waits(row, fate)).collect();
    let dropped =
        sqlx::query_file!("queries/settle_parked.sql", &tenants, &ids, &reasons, &waiting).fetch_all(db).await?;
    Ok(dropped.into_iter().map(|row| (row.id, row.provider)).collect())
}

fn count(rows: &[Row], fates: &Fates) {
    for (row, fate) in rows.iter().zip(&fates.each) {
        if row.reason == UNKNOWN && *fate != Fate::Unknown {
            let provider = row.item.provider.unwrap_or("link");
            count_facts(provider, "joined", 1);
            let waited_s = (Utc::now() - row.parked_at).num_seconds();
            tracing::debug!(stage = "engagement", fact = %row.item.id, provider, waited_s, "joined its send");
        }
    }
}
