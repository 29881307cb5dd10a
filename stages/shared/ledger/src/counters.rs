//! The counters of batches, their next state, and the totals of hours: every change of sends' states moves them here, in its transaction. (Two
//! statements on the shortest ways know the rule as well: the acceptance of a lone mail, `fence/accept_last.sql`, and the retry of mail that
//! had failed, `retry/retry_failed.sql`.)

use std::collections::BTreeMap;

use chrono::{DateTime, NaiveDate, Utc};
use runtime::column;
use schemas::{SendId, SendState};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    fence::NextAnnouncement,
    hours::{BatchKey, Hours, batch_of, hour_of},
};

/// The changes of a batch's counters, announcement and lease.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct CounterDelta {
    /// By state.
    counts: [i32; SendState::ALL.len()],
    /// Hard bounces.
    pub(crate) bounced: i32,
    /// Delivered sends.
    pub(crate) delivered: i32,
    announce: Option<f64>,
    on_dispatch: bool,
    lease_seconds: f64,
}

impl CounterDelta {
    /// Counts a send that moved from one state to another.
    pub(crate) fn moved(&mut self, from: SendState, to: SendState) {
        self.all_moved(from, to, 1);
    }

    /// Counts so many sends that moved from one state to another.
    pub(crate) fn all_moved(&mut self, from: SendState, to: SendState, sends: i32) {
        self.counts[from as usize] -= sends;
        self.counts[to as usize] += sends;
    }

    /// Sets the next announcement: the earliest time wins, and `OnDispatch` wins over any time.
    pub(crate) fn announce(&mut self, announce: NextAnnouncement) {
        match announce {
            NextAnnouncement::AsPlanned => {}
            NextAnnouncement::After(wait) => {
                let wait = wait.as_secs_f64();
                self.announce = Some(self.announce.map_or(wait, |other| other.min(wait)));
            }
            NextAnnouncement::OnDispatch => self.on_dispatch = true,
        }
    }

    /// Extends the batch's lease.
    pub(crate) fn lease(&mut self, seconds: f64) {
        self.lease_seconds = self.lease_seconds.max(seconds);
    }
}

/// The total of an hour that a send adds to by getting this state.
pub(crate) fn total_of(to: SendState) -> Option<&'static str> {
    match to {
        SendState::Sent => Some("sent"),
        SendState::Failed | SendState::Expired => Some("failed"),
        SendState::Skipped | SendState::Cancelled => Some("skipped"),
        SendState::Unknown => Some("unknown"),
        SendState::Queued | SendState::Fenced | SendState::Deferred => None,
    }
}

/// The index of a row in the arrays of a statement.
pub(crate) fn index_of(position: i64) -> Option<usize> {
    usize::try_from(position - 1).ok()
}

/// Locks batches, in the order of their keys. Everywhere in the ledger, batches are locked before contacts and sends.
pub(crate) async fn lock_batches(db: &mut PgConnection, keys: &[BatchKey]) -> sqlx::Result<()> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = keys.iter().copied().unzip();
    sqlx::query_file!("queries/counters/lock_batches.sql", &tenants, &ids).fetch_all(db).await.map(drop)
}

/// Totals to add, by tenant, hour (`None`: this one), kind and event.
pub(crate) type Totals = BTreeMap<(Uuid, Option<DateTime<Utc>>, &'static str, &'static str), i64>;

/// Quota used, by tenant, day (`None`: today) and shard: sorted, the order rows are locked in.
pub(crate) type UsageTotals = BTreeMap<(Uuid, Option<NaiveDate>, i16), i64>;

/// Moves the counters of the batches, which must be locked, and adds to the hour's totals and the send usage.
pub(crate) async fn move_counters(
    db: &mut PgConnection,
    deltas: &BTreeMap<BatchKey, CounterDelta>,
    (totals, shard): (&Totals, i16),
    usage: &UsageTotals,
) -> sqlx::Result<()> {
    if deltas.is_empty() {
        return Ok(());
    }
    let total_counts: Vec<i64> = totals.values().copied().collect();
    let usage_counts: Vec<i64> = usage.values().copied().collect();
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = deltas.keys().copied().unzip();
    let count = |state: SendState| column(deltas.values(), |delta| delta.counts[state as usize]);
    sqlx::query_file!(
        "queries/counters/move_counters.sql",
        &tenants,
        &ids,
        &count(SendState::Queued),
        &count(SendState::Fenced),
        &count(SendState::Deferred),
        &count(SendState::Sent),
        &count(SendState::Failed),
        &count(SendState::Unknown),
        &count(SendState::Skipped),
        &count(SendState::Cancelled),
        &count(SendState::Expired),
        &column(deltas.values(), |delta| delta.bounced),
        &column(deltas.values(), |delta| delta.announce) as &[Option<f64>],
        &column(deltas.values(), |delta| delta.on_dispatch),
        &column(deltas.values(), |delta| delta.lease_seconds),
        &column(&ids, |id| SendId::last_of(*id)),
        &column(deltas.values(), |delta| delta.delivered),
        &column(totals.keys(), |key| key.0),
        &column(totals.keys(), |key| key.2) as &[&str],
        &column(totals.keys(), |key| key.3) as &[&str],
        &total_counts,
        shard,
        &column(usage.keys(), |key| key.0),
        &column(usage.keys(), |key| key.1) as &[Option<NaiveDate>],
        &column(usage.keys(), |key| key.2),
        &usage_counts,
        &column(totals.keys(), |key| key.1) as &[Option<DateTime<Utc>>]
    )
    .execute(db)
    .await
    .map(drop)
}

/// A send whose outcome was open or unknown, and is now known by evidence.
pub(crate) struct ResolvedSend {
    pub(crate) tenant_id: Uuid,
    pub(crate) id: Uuid,
    /// The state it came from.
    pub(crate) was: SendState,
    pub(crate) decided_at: DateTime<Utc>,
    /// Since when its outcome was unknown, if it was.
    pub(crate) doubted_at: Option<DateTime<Utc>>,
    /// It counts as delivered.
    pub(crate) delivered: bool,
}

/// Counts sends that evidence has brought to a state. Their batches are locked.
pub(crate) async fn count_resolved(
    db: &mut PgConnection,
    resolved: &[ResolvedSend],
    to: SendState,
    hours: &mut Hours,
) -> sqlx::Result<()> {
    let mut deltas: BTreeMap<BatchKey, CounterDelta> = BTreeMap::new();
    for send in resolved {
        let (batch, hour) = (batch_of((send.tenant_id, send.id)), hour_of(send.decided_at));
        let delta = deltas.entry(batch).or_default();
        delta.moved(send.was, to);
        hours.add(batch, to.as_str(), hour, 1);
        if send.delivered {
            delta.delivered += 1;
            hours.add(batch, "delivered", hour, 1);
        }
        if let Some(at) = send.doubted_at {
            hours.add(batch, "unknown", hour_of(at), -1);
        }
    }
    move_counters(db, &deltas, (&Totals::new(), 0), &UsageTotals::new()).await
}
