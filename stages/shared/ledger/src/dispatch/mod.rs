//! The fair scheduler: announces waiting batches to compliance, tenants in turn, up to the backlog. A tenant with a provider connection
//! of its own is isolated: it has a backlog of its own, so a slow provider delays only its tenant.
//!
//! Only the bulk lane has batches that wait: priority batches are announced when they are written.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use runtime::{Bus, Notifier, plans::PreparedPool};
use schemas::{Lane, ids::BATCH_MAX};
use sqlx::PgPool;

pub(crate) use self::announce::AnnouncedBatch;
use crate::frequency::Urgency;

pub use reannounce::ReannounceBatches;
pub use requests::AnnounceRequests;
pub use resume::ResumeTenants;

mod announce;
mod reannounce;
mod requests;
mod resume;
mod traced;

/// First pause before a priority batch that is still open is announced again, at most. Its announcements are in memory: a NATS server that
/// is started again has lost them.
pub const PRIORITY_REANNOUNCE: Duration = Duration::from_secs(10);

const INTERVAL: Duration = Duration::from_millis(100);
/// While less than one part in so many of the backlog is free, delivery has enough to do, and nothing is dispatched.
const CAPACITY_MIN: i64 = 16;
/// Used while delivery may soon have nothing left to do.
const INTERVAL_NEARLY_IDLE: Duration = Duration::from_millis(20);
/// How long the short interval is used: sends that take longer wait for a slow receiver.
const NEARLY_IDLE_MAX: Duration = Duration::from_secs(2);

/// How much is dispatched at a time.
#[derive(Debug, Clone, Copy)]
pub struct DispatchLimits {
    /// Campaign sends dispatched and not yet decided, over all tenants.
    pub backlog: i64,
    /// Campaign sends dispatched and not yet decided, of each tenant with a provider connection of its own.
    pub connection_backlog: i64,
    /// First pause before a batch of a campaign that is still open is announced again.
    pub reannounce: Duration,
}

/// The fair scheduler: puts waiting batches of campaigns on the bus, tenants in turn.
pub struct Dispatch {
    pool: PgPool,
    by_key: PreparedPool,
    bus: Bus,
    limits: DispatchLimits,
    launched: Notifier,
    last: Mutex<Option<LastDispatch>>,
    /// False if no batch waited at the last look, or another process dispatches.
    has_waiting: AtomicBool,
}

/// The last dispatch, if it left more than half of the backlog free: the batches that still wait then wait for something else, such as
/// the first thousand sends of their campaign. These are done in a moment, and delivery is idle until the next dispatch.
#[derive(Debug, Clone, Copy)]
struct LastDispatch {
    at: Instant,
    /// Sends in flight at the last scan. `None`: they were done, and the scan found no more batches.
    in_flight: Option<i64>,
    /// When waiting batches were last scanned.
    scanned_at: Instant,
}

impl LastDispatch {
    fn is_nearly_idle(&self) -> bool {
        self.in_flight.is_some() && self.at.elapsed() < NEARLY_IDLE_MAX
    }

    /// True if a scan may find something new. A scan costs milliseconds; counting what is in flight costs a fraction of one.
    fn is_due(&self, in_flight: i64) -> bool {
        let is_batch_done = self.in_flight.is_some_and(|before| before - in_flight >= BATCH_MAX as i64);
        self.scanned_at.elapsed() >= INTERVAL || self.is_nearly_idle() && (is_batch_done || self.is_done(in_flight))
    }

    /// True if nine tenths are done: the share at which `dispatch_batches.sql` releases the rest of a campaign.
    fn is_done(&self, in_flight: i64) -> bool {
        self.in_flight.is_some_and(|before| in_flight * 10 <= before)
    }
}

impl Dispatch {
    /// A scheduler with these limits. `launched` is notified when batches were written that wait.
    #[must_use]
    pub fn new(pool: PgPool, by_key: PreparedPool, bus: Bus, limits: DispatchLimits, launched: Notifier) -> Self {
        Self { pool, by_key, bus, limits, launched, last: Mutex::default(), has_waiting: AtomicBool::new(false) }
    }

    fn last(&self) -> Option<LastDispatch> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a dispatch of `taken` sends, or a scan that found none, with `in_flight` sends in flight before.
    fn note(&self, in_flight: i64, taken: i64) {
        let now = Instant::now();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if taken > 0 {
            let in_flight = in_flight + taken;
            let is_mostly_idle = in_flight * 2 <= self.limits.backlog;
            *last = is_mostly_idle.then_some(LastDispatch { at: now, in_flight: Some(in_flight), scanned_at: now });
        } else if let Some(last) = &mut *last {
            let in_flight = Some(in_flight).filter(|_| last.in_flight.is_some() && !last.is_done(in_flight));
            *last = LastDispatch { in_flight, scanned_at: now, ..*last };
        }
    }

    /// Marks the next batches announced, in a transaction of its own.
    async fn take(&self) -> Result<Vec<AnnouncedBatch>, StageError> {
        let mut tx = self.by_key.begin().await?;
        // One process at a time, so that two do not fill the same backlog; the others find nothing to do.
        let is_ours = sqlx::query_scalar!(
            r#"select exists (select from batches where lane = 'bulk' and state = 'waiting')
                      and pg_try_advisory_xact_lock(hashtext('postrider dispatch')) as "ours!""#
        )
        .fetch_one(&mut *tx)
        .await?;
        self.has_waiting.store(is_ours, Ordering::Relaxed);
        if !is_ours {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
            tx.rollback().await?;
            return Ok(Vec::new());
        }
        // Counted by a later statement, which sees all that the process before it announced: that one may have committed after the statement
        // with the lock began.
        let found = sqlx::query_file!("queries/dispatch/dispatch_capacity.sql", self.limits.connection_backlog)
            .fetch_one(&mut *tx)
            .await?;
        let in_flight = found.in_flight;
        let remaining = (self.limits.backlog - in_flight).max(0);
        let has_capacity = remaining > 0 && remaining * CAPACITY_MIN >= self.limits.backlog || found.isolated;
        if !has_capacity || self.last().is_some_and(|last| !last.is_due(in_flight)) {
            tx.rollback().await?;
            return Ok(Vec::new());
        }
        let rows = sqlx::query_file!(
            "queries/dispatch/dispatch_batches.sql",
            remaining,
            // No campaign can get more batches than this, so no more of each are considered, and no more campaigns.
            remaining.max(self.limits.connection_backlog) / BATCH_MAX as i64 + 1,
            self.limits.reannounce.as_secs_f64(),
            self.limits.connection_backlog,
            Urgency::NAMES as &[&str],
        )
        .fetch_all(&mut *tx)
        .await?;
        tx.commit().await?;
        self.note(in_flight, rows.iter().map(|row| i64::from(row.weight)).sum());
        let announced = rows.into_iter().map(|row| AnnouncedBatch {
            tenant_id: row.tenant_id,
            batch_id: row.id,
            lane: Lane::Bulk,
            announcement: row.announcement,
        });
        Ok(announced.collect())
    }

    fn interval(&self) -> Duration {
        if self.last().is_some_and(|last| last.is_nearly_idle()) { INTERVAL_NEARLY_IDLE } else { INTERVAL }
    }
}

#[async_trait]
impl Sweep for Dispatch {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("dispatch", self.interval())
            .when("exists (select from batches where lane = 'bulk' and state = 'waiting')")
    }

    /// After a launch; and while batches wait, after every interval: they wait for sends to be done, not to be found.
    async fn woken(&self) {
        let scan_again = async {
            match self.has_waiting.load(Ordering::Relaxed) {
                true => tokio::time::sleep(self.interval()).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.launched.notified() => {}
            () = scan_again => {}
        }
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let taken = self.take().await?;
        announce::batches(&self.pool, &self.bus, &taken).await?;
        Ok(taken.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::all_in_flight(Some(1_000), 0, 1_000, false)]
    #[case::less_than_a_batch_is_done(Some(1_000), 0, 501, false)]
    #[case::a_batch_is_done(Some(1_000), 0, 500, true)]
    #[case::more_than_a_tenth_in_flight(Some(500), 0, 51, false)]
    #[case::a_tenth_in_flight(Some(500), 0, 50, true)]
    #[case::others_filled_the_backlog(Some(1_000), 0, 9_000, false)]
    #[case::done_and_none_found(None, 0, 0, false)]
    #[case::scanned_a_while_ago(Some(1_000), 100, 1_000, true)]
    #[case::none_found_a_while_ago(None, 100, 0, true)]
    fn a_scan_is_due_after_a_batch_or_an_interval(
        #[case] in_flight_then: Option<i64>,
        #[case] scanned_before_ms: u64,
        #[case] in_flight: i64,
        #[case] due: bool,
    ) {
        let now = Instant::now();
        let scanned_at = now.checked_sub(Duration::from_millis(scanned_before_ms)).unwrap();
        assert_eq!(LastDispatch { at: now, in_flight: in_flight_then, scanned_at }.is_due(in_flight), due);
    }

    #[test]
    fn a_slow_receiver_does_not_shorten_the_interval() {
        let now = Instant::now();
        let at = now.checked_sub(NEARLY_IDLE_MAX).unwrap();
        assert!(!LastDispatch { at, in_flight: Some(1_000), scanned_at: now }.is_due(0));
    }
}
