//! Hands batches of campaigns on to compliance, tenants in turn, no more than the backlog at a time. A tenant with a connection of its
//! own has a backlog of its own: what its provider does not take stands in nobody else's way.
//!
//! Only the bulk lane has batches that wait: priority sends are announced as they are made.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use runner::{StageError, Sweep};
use runtime::Bus;
use schemas::{Lane, ids::BATCH_MAX};
use sqlx::PgPool;
use tokio::sync::Notify;

use self::announce::AnnouncedBatch;

pub use reannounce::Reannounce;
pub use requests::AnnounceRequests;
pub use resume::ResumeTenants;

pub mod announce;
mod reannounce;
mod requests;
mod resume;
mod traced;

const INTERVAL: Duration = Duration::from_millis(100);
/// While delivery may soon have nothing left to do.
const INTERVAL_NEARLY_IDLE: Duration = Duration::from_millis(20);
/// For so long: what takes longer is a slow receiver's.
const NEARLY_IDLE_MAX: Duration = Duration::from_secs(2);

/// How much is dispatched at a time.
#[derive(Debug, Clone, Copy)]
pub struct DispatchLimits {
    /// Campaign sends dispatched and not yet decided, over all tenants.
    pub backlog: u32,
    /// The same of each tenant with a provider connection of its own.
    pub connection_backlog: u32,
    /// First pause before a batch that is still open is announced again.
    pub reannounce: Duration,
}

/// The fair scheduler: puts waiting batches of campaigns on the bus, tenants in turn.
pub struct Dispatch {
    pool: PgPool,
    bus: Bus,
    backlog: i64,
    connection_backlog: i64,
    reannounce: Duration,
    launched: Arc<Notify>,
    last: Mutex<Option<Handed>>,
}

/// What was handed on last, where it left most of the room empty and batches behind: they wait for something other than room, such as
/// the first thousand of their campaign. Those are done in a moment, and delivery has nothing to do until the next are handed on.
#[derive(Debug, Clone, Copy)]
struct Handed {
    at: Instant,
    /// Sends in flight at the last look. `None`: they were done, and nothing more was found.
    in_flight: Option<i64>,
    /// The last look that was not only at what is in flight.
    looked_at: Instant,
}

impl Handed {
    fn is_watched(&self) -> bool {
        self.in_flight.is_some() && self.at.elapsed() < NEARLY_IDLE_MAX
    }

    /// Whether a look may find something new: it costs milliseconds, and what is in flight a fraction of one.
    fn is_due(&self, in_flight: i64) -> bool {
        let is_batch_done = self.in_flight.is_some_and(|before| before - in_flight >= BATCH_MAX as i64);
        self.looked_at.elapsed() >= INTERVAL || self.is_watched() && (is_batch_done || self.is_done(in_flight))
    }

    /// Nine tenths of it, as what holds the rest of a campaign back wants it.
    fn is_done(&self, in_flight: i64) -> bool {
        self.in_flight.is_some_and(|before| in_flight * 10 <= before)
    }
}

impl Dispatch {
    /// With these limits; `launched` says that a launch's batches are written.
    #[must_use]
    pub fn new(pool: PgPool, bus: Bus, limits: DispatchLimits, launched: Arc<Notify>) -> Self {
        Self {
            pool,
            bus,
            backlog: limits.backlog.into(),
            connection_backlog: limits.connection_backlog.into(),
            reannounce: limits.reannounce,
            launched,
            last: Mutex::default(),
        }
    }

    fn last(&self) -> Option<Handed> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps in mind what was handed on, or that it was looked in vain, with so many sends in flight before.
    fn note(&self, in_flight: i64, taken: i64) {
        let now = Instant::now();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if taken > 0 {
            let in_flight = in_flight + taken;
            let leaves_room = in_flight * 2 <= self.backlog;
            *last = leaves_room.then_some(Handed { at: now, in_flight: Some(in_flight), looked_at: now });
        } else if let Some(handed) = &mut *last {
            let in_flight = Some(in_flight).filter(|_| handed.in_flight.is_some() && !handed.is_done(in_flight));
            *handed = Handed { in_flight, looked_at: now, ..*handed };
        }
    }

    /// Nothing waits, or another process hands on.
    fn forget(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Marks the next batches announced, in a transaction of its own.
    async fn take(&self) -> Result<Vec<AnnouncedBatch>, StageError> {
        let mut tx = self.pool.begin().await?;
        // One process at a time, so that two do not fill the same room; the others find nothing to do. Whether anything waits is asked
        // first: the statement that hands on takes milliseconds to plan, ten times a second.
        let found =
            sqlx::query_file!("queries/dispatch/hand_on_room.sql", self.connection_backlog).fetch_one(&mut *tx).await?;
        let Some(in_flight) = found.in_flight else {
            self.forget();
            return Ok(Vec::new());
        };
        let room = (self.backlog - in_flight).max(0);
        if room == 0 && !found.apart || self.last().is_some_and(|handed| !handed.is_due(in_flight)) {
            return Ok(Vec::new());
        }
        let rows = sqlx::query_file!(
            "queries/dispatch/hand_on.sql",
            room,
            // No campaign can get more batches than this, so no more of each are looked at.
            room.max(self.connection_backlog) / BATCH_MAX as i64 + 1,
            self.reannounce.as_secs_f64(),
            self.connection_backlog,
        )
        .fetch_all(&mut *tx)
        .await?;
        tx.commit().await?;
        self.note(in_flight, rows.iter().map(|row| i64::from(row.load)).sum());
        let rung = rows.into_iter().map(|row| AnnouncedBatch {
            tenant_id: row.tenant_id,
            batch_id: row.id,
            lane: Lane::Bulk,
            announcement: row.announcement,
        });
        Ok(rung.collect())
    }
}

#[async_trait]
impl Sweep for Dispatch {
    fn name(&self) -> &'static str {
        "hand_on"
    }

    fn interval(&self) -> Duration {
        if self.last().is_some_and(|handed| handed.is_watched()) { INTERVAL_NEARLY_IDLE } else { INTERVAL }
    }

    async fn pause(&self) {
        tokio::select! {
            () = self.launched.notified() => {}
            () = tokio::time::sleep(self.interval()) => {}
        }
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let taken = self.take().await?;
        announce::batches(&self.pool, &self.bus, &taken).await?;
        Ok(taken.len() as u64)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::all_in_hand(Some(1_000), 0, 1_000, false)]
    #[case::less_than_a_batch_is_done(Some(1_000), 0, 501, false)]
    #[case::a_batch_is_done(Some(1_000), 0, 500, true)]
    #[case::more_than_a_tenth_in_hand(Some(500), 0, 51, false)]
    #[case::a_tenth_in_hand(Some(500), 0, 50, true)]
    #[case::others_took_the_room(Some(1_000), 0, 9_000, false)]
    #[case::done_and_looked_in_vain(None, 0, 0, false)]
    #[case::looked_a_while_ago(Some(1_000), 100, 1_000, true)]
    #[case::looked_in_vain_a_while_ago(None, 100, 0, true)]
    fn it_is_looked_again_when_a_batch_of_what_was_handed_on_is_done_or_nearly_all_or_after_a_while(
        #[case] in_flight_then: Option<i64>,
        #[case] looked_before_ms: u64,
        #[case] in_flight: i64,
        #[case] due: bool,
    ) {
        let now = Instant::now();
        let looked_at = now.checked_sub(Duration::from_millis(looked_before_ms)).unwrap();
        assert_eq!(Handed { at: now, in_flight: in_flight_then, looked_at }.is_due(in_flight), due);
    }

    #[test]
    fn what_takes_longer_is_not_watched_closely() {
        let now = Instant::now();
        let at = now.checked_sub(NEARLY_IDLE_MAX).unwrap();
        assert!(!Handed { at, in_flight: Some(1_000), looked_at: now }.is_due(0));
    }
}
