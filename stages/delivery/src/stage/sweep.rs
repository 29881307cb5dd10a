//! Leases that ran out: what a crash left claimed is owed again, what it left fenced is in doubt. And captured mails that are old.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use async_trait::async_trait;
use chrono::NaiveDate;
use runner::{StageError, Sweep};
use schemas::{Classification, MessageKind, SendId, SendState};
use sqlx::{Connection, PgPool};
use uuid::Uuid;

use super::ledger::{
    Ring, is_tried_again,
    sql::{self, BatchKey, Booking, Totals},
};

/// The lease sweep.
pub(crate) struct Leases {
    pool: PgPool,
}

impl Leases {
    pub fn new(pool: PgPool) -> Self {
        Self { pool }
    }
}

/// A batch whose lease is over.
struct Expired {
    tenant_id: Uuid,
    id: Uuid,
    kind: MessageKind,
    classification: Classification,
}

#[async_trait]
impl Sweep for Leases {
    fn name(&self) -> &'static str {
        "leases"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn rests(&self) -> bool {
        false
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut connection = self.pool.acquire().await?;
        let mut tx = connection.begin().await?;
        let rows = sqlx::query_file!("queries/expired_leases.sql").fetch_all(&mut *tx).await?;
        let mut months: BTreeMap<NaiveDate, Vec<Expired>> = BTreeMap::new();
        for row in rows {
            months.entry(row.month).or_default().push(Expired {
                tenant_id: row.tenant_id,
                id: row.id,
                kind: row.kind,
                classification: row.classification,
            });
        }
        let (mut bookings, mut totals, mut found) = (BTreeMap::new(), Totals::new(), 0);
        for (month, batches) in &months {
            found += end_leases(&mut tx, *month, batches, &mut bookings, &mut totals).await?;
        }
        sql::settle(&mut tx, &bookings).await?;
        sql::add_rollups(&mut tx, &totals, 0).await?;
        for batches in months.values() {
            let (tenants, ids, last) = keys(batches);
            sqlx::query_file!("queries/renew_batch_leases.sql", &tenants, &ids, &last).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        if found > 0 {
            tracing::warn!(stage = "delivery", sends = found, "leases ran out; their sends go on");
        }
        Ok(found)
    }
}

/// Ends the leases of one month's batches; answers how many.
async fn end_leases(
    db: &mut sqlx::PgConnection,
    month: NaiveDate,
    batches: &[Expired],
    bookings: &mut BTreeMap<BatchKey, Booking>,
    totals: &mut Totals,
) -> Result<u64, StageError> {
    let by_id: HashMap<Uuid, &Expired> = batches.iter().map(|batch| (batch.id, batch)).collect();
    let (tenants, ids, last) = keys(batches);
    let again: Vec<bool> = batches.iter().map(|batch| is_tried_again(batch.kind, batch.classification)).collect();
    let released =
        sqlx::query_file!("queries/release_claimed.sql", &tenants, &ids, &last, month).fetch_all(&mut *db).await?;
    let doubted =
        sqlx::query_file!("queries/doubt_fenced.sql", &tenants, &ids, &last, month, &again).fetch_all(&mut *db).await?;
    let moved = released
        .iter()
        .map(|row| (row.id, SendState::Claimed, SendState::Queued))
        .chain(doubted.iter().map(|row| (row.id, SendState::Fenced, row.state)));
    let mut found = 0;
    for (id, from, to) in moved {
        let Some(batch) = by_id.get(&SendId(id).batch()) else { continue };
        let booking = bookings.entry((batch.tenant_id, batch.id)).or_default();
        booking.moved(from, to);
        booking.ring(Ring::After(Duration::ZERO));
        if to == SendState::Unknown {
            *totals.entry((batch.tenant_id, batch.kind.as_str(), "unknown")).or_default() += 1;
        }
        found += 1;
    }
    Ok(found)
}

fn keys(batches: &[Expired]) -> (Vec<Uuid>, Vec<Uuid>, Vec<Uuid>) {
    let tenants = batches.iter().map(|batch| batch.tenant_id).collect();
    let ids: Vec<Uuid> = batches.iter().map(|batch| batch.id).collect();
    let last = ids.iter().map(|id| SendId::last_of(*id)).collect();
    (tenants, ids, last)
}

/// Drops captured mails after their week.
pub(crate) struct Captures {
    pool: PgPool,
}

impl Captures {
    pub fn new(pool: PgPool) -> Self {
        Self { pool }
    }
}

#[async_trait]
impl Sweep for Captures {
    fn name(&self) -> &'static str {
        "captures"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(600)
    }

    fn rests(&self) -> bool {
        false
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let dropped = sqlx::query_file!("queries/expire_captures.sql").execute(&self.pool).await?;
        Ok(dropped.rows_affected())
    }
}
