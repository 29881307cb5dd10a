//! Sends in doubt that left by a provider's word: `unknown`, or about to be tried once more, becomes `sent`.

use std::collections::BTreeMap;

use chrono::{DateTime, NaiveDate, Utc};
use schemas::{SendId, SendState};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{SendKey, batch_of};
use crate::hours::{BatchKey, Hours, hour_of};

/// A provider's word that it took a mail: whatever it tells of it, it has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// The tenant.
    pub tenant_id: Uuid,
    /// The send.
    pub send_id: Uuid,
    /// When the provider says that something happened to it.
    pub at: DateTime<Utc>,
    /// Which provider.
    pub provider: String,
    /// The id it has there.
    pub message_id: Option<String>,
}

impl Evidence {
    pub(super) fn send(&self) -> SendKey {
        (self.tenant_id, self.send_id)
    }
}

/// How many sends of a batch left each state.
#[derive(Debug, Default, Clone, Copy)]
struct Moved {
    queued: i32,
    deferred: i32,
    unknown: i32,
    /// How many of them count as delivered by it.
    delivered: i32,
}

/// Settles those of these sends that are in doubt, with their batches and totals. The batches are locked.
pub(super) async fn settle(db: &mut PgConnection, evidence: &[&Evidence], hours: &mut Hours) -> sqlx::Result<u64> {
    // One word for each send, the earliest: the statement moves each row once.
    let mut earliest: BTreeMap<SendKey, &Evidence> = BTreeMap::new();
    for told in evidence {
        let known = earliest.entry(told.send()).or_insert(told);
        if told.at < known.at {
            *known = told;
        }
    }
    let (tenants, sends): (Vec<Uuid>, Vec<Uuid>) = earliest.keys().copied().unzip();
    let months: Vec<NaiveDate> = sends.iter().map(|send| SendId(*send).month()).collect();
    let at: Vec<DateTime<Utc>> = earliest.values().map(|told| told.at).collect();
    let providers: Vec<String> = earliest.values().map(|told| told.provider.clone()).collect();
    let ids: Vec<Option<String>> = earliest.values().map(|told| told.message_id.clone()).collect();
    let rows = sqlx::query_file!(
        "queries/facts/settle.sql",
        &tenants,
        &sends,
        &months,
        &at,
        &providers,
        &ids as &[Option<String>]
    )
    .fetch_all(&mut *db)
    .await?;
    let mut moved: BTreeMap<BatchKey, Moved> = BTreeMap::new();
    for row in &rows {
        let batch = batch_of((row.tenant_id, row.id));
        let from = moved.entry(batch).or_default();
        match SendState::parse(&row.was) {
            Some(SendState::Queued) => from.queued += 1,
            Some(SendState::Deferred) => from.deferred += 1,
            _ => from.unknown += 1,
        }
        hours.add(batch, "sent", hour_of(row.decided_at), 1);
        if row.delivered {
            from.delivered += 1;
            hours.add(batch, "delivered", hour_of(row.decided_at), 1);
        }
    }
    book(db, &moved).await?;
    Ok(rows.len() as u64)
}

async fn book(db: &mut PgConnection, moved: &BTreeMap<BatchKey, Moved>) -> sqlx::Result<()> {
    if moved.is_empty() {
        return Ok(());
    }
    let (tenants, batches): (Vec<Uuid>, Vec<Uuid>) = moved.keys().copied().unzip();
    let last: Vec<Uuid> = batches.iter().map(|batch| SendId::last_of(*batch)).collect();
    let column = |count: fn(&Moved) -> i32| moved.values().map(count).collect::<Vec<i32>>();
    sqlx::query_file!(
        "queries/facts/settle_batches.sql",
        &tenants,
        &batches,
        &last,
        &column(|moved| moved.queued),
        &column(|moved| moved.deferred),
        &column(|moved| moved.unknown),
        &column(|moved| moved.delivered)
    )
    .execute(db)
    .await
    .map(drop)
}
