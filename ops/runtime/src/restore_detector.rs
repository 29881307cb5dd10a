//! Detects a restored ledger by its epoch.
//!
//! A restored ledger is older than the world. Mail that was sent after the backup is queued there, and the engine would send it
//! again. So the ledger has an epoch (the column `mark`): every few seconds a process that sends mail increments it and, after the
//! commit, publishes it on the bus. The published epoch can be ahead of the ledger only if the ledger went back. The ledger also
//! stores its location: a dump restored into another cluster or database is detected even if the bus has lost everything.
//!
//! If only the bus loses its store, nothing stops: the ledger publishes its epoch again. The ledger is paused only if both are in
//! doubt: the bus has no epoch, and Postgres has begun a new timeline, as it does after a point-in-time recovery.

use std::time::Duration;

use async_nats::jetstream::stream::LastRawMessageErrorKind;
use chrono::{DateTime, Utc};
use schemas::{
    LedgerMark,
    subjects::{self, stream},
};
use serde_json::json;
use thiserror::Error;
use uuid::Uuid;

use crate::{AuditRecord, Bus, Publication, audit, plans::PreparedPool};

/// How often a process checks the ledger, and how often the epoch is incremented at most.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Timeout of one check.
pub const CHECK_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout for reading the published epoch. After it the bus counts as unavailable.
const BUS_TIMEOUT: Duration = Duration::from_secs(3);
/// How far the epoch of a paused ledger jumps ahead: beyond any epoch that a process may have seen before the restore.
const EPOCH_JUMP: i64 = 1_000;

/// Why a check failed.
#[derive(Debug, Error)]
pub enum EpochError {
    /// Postgres is unavailable.
    #[error("the ledger")]
    Ledger(#[from] sqlx::Error),
    /// The epoch could not be serialised.
    #[error("the ledger epoch")]
    Json(#[from] serde_json::Error),
    /// The bus, which may have the ledger's epoch, is unavailable, and this process has seen none, or Postgres has begun a new timeline.
    #[error("the bus must answer first")]
    Undecided,
}

/// The ledger's row, and its current location.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LedgerRow {
    id: Uuid,
    noted_place: Option<String>,
    place: String,
    mark: i64,
    marked_at: DateTime<Utc>,
    is_held: bool,
}

/// The epoch that was published on the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PublishedEpoch {
    Unavailable,
    /// The bus has no epoch of this ledger.
    Missing,
    /// The last published epoch, and its time.
    Epoch(i64, DateTime<Utc>),
}

impl PublishedEpoch {
    /// The epoch; 0, which is before all of them, if none is known.
    fn mark(self) -> i64 {
        if let Self::Epoch(mark, _) = self { mark } else { 0 }
    }
}

/// Why a ledger counts as restored: it is in another cluster or database than before, …
const MOVED: &str = "restored: the ledger is in another cluster or database than before";
/// … its epoch is behind the one that was seen, …
const BEHIND: &str = "restored: the ledger is older than the epoch on the bus";
/// … or Postgres recovered to a point in time, and the last epoch is not known.
const NEW_TIMELINE: &str = "restored: Postgres recovered to a new timeline, and the bus has no epoch to compare with";

/// Compares the ledger with the published epoch, and increments the epoch.
#[derive(Debug)]
pub struct RestoreDetector {
    by_key: PreparedPool,
    bus: Bus,
    /// True if this process increments the epoch. Other processes only compare.
    advances: bool,
    /// The ledger and the highest epoch that this process has seen.
    furthest_seen: Option<(Uuid, i64)>,
}

impl RestoreDetector {
    /// The detector of one process. `by_key` must use the stages' role.
    #[must_use]
    pub fn new(by_key: PreparedPool, bus: Bus, advances: bool) -> Self {
        Self { by_key, bus, advances, furthest_seen: None }
    }

    /// Checks once, and pauses a restored ledger. Answers whether the ledger is paused, by this check or before it.
    pub async fn check_epoch(&mut self) -> Result<bool, EpochError> {
        let ledger = match self.furthest_seen {
            Some((ledger, _)) => ledger,
            None => self.read_ledger().await?.id,
        };
        let published = self.read_published(ledger).await;
        // Read after the published epoch: a process may increment and publish the epoch in between, and a row that was read first
        // would look restored.
        let row = self.read_ledger().await?;
        if row.id != ledger {
            self.furthest_seen = None;
            return Err(EpochError::Undecided);
        }
        let furthest_seen = self.furthest_seen.map_or(0, |(_, mark)| mark);
        match decide(&row, published, furthest_seen) {
            EpochDecision::Current => {}
            EpochDecision::Undecided => return Err(EpochError::Undecided),
            EpochDecision::Restored(why) => {
                self.pause_ledger(&row, why, published, furthest_seen).await?;
                self.furthest_seen = None;
                return Ok(true);
            }
        }
        self.furthest_seen = Some((row.id, row.mark.max(furthest_seen)));
        if row.noted_place.as_deref() != Some(row.place.as_str()) {
            let mut db = self.by_key.take().await?;
            sqlx::query!("update ledger set place = $2 where id = $1", row.id, row.place).execute(&mut *db).await?;
            db.put_back();
        }
        if self.advances {
            self.advance_epoch(&row).await?;
        }
        Ok(row.is_held)
    }

    /// Reads the last published epoch of this ledger.
    async fn read_published(&self, ledger: Uuid) -> PublishedEpoch {
        let asked = async {
            let marks = self.bus.jetstream().get_stream_no_info(self.bus.prefixed(stream::MARKS)).await.ok()?;
            match marks.get_last_raw_message_by_subject(&self.bus.prefixed(subjects::MARK)).await {
                Ok(message) => Some(match serde_json::from_slice::<LedgerMark>(&message.payload) {
                    Ok(epoch) if epoch.ledger_id == ledger => PublishedEpoch::Epoch(epoch.mark, epoch.at),
                    _ => PublishedEpoch::Missing,
                }),
                Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Some(PublishedEpoch::Missing),
                Err(_) => None,
            }
        };
        tokio::time::timeout(BUS_TIMEOUT, asked).await.ok().flatten().unwrap_or(PublishedEpoch::Unavailable)
    }

    /// Increments the epoch, if no process has for a while, and publishes it. In this order: only a committed epoch is published.
    async fn advance_epoch(&mut self, row: &LedgerRow) -> Result<(), EpochError> {
        let mut db = self.by_key.take().await?;
        // A time in the future is of a clock that was set back since.
        let moved = sqlx::query!(
            r#"update ledger set mark = mark + 1, marked_at = clock_timestamp()
               where id = $1 and marked_at not between clock_timestamp() - make_interval(secs => $2) and clock_timestamp()
               returning mark, marked_at"#,
            row.id,
            CHECK_INTERVAL.as_secs_f64() * 0.9,
        )
        .fetch_optional(&mut *db)
        .await?;
        db.put_back();
        let Some(moved) = moved else { return Ok(()) };
        self.furthest_seen = Some((row.id, moved.mark));
        let epoch = LedgerMark { ledger_id: row.id, mark: moved.mark, at: moved.marked_at };
        let id = format!("mark-{}-{}", row.id.simple(), moved.mark);
        let publication = Publication::json(subjects::MARK.to_owned(), id, &epoch)?;
        // Without the bus, only the comparison with this epoch is lost.
        if let Err(error) = self.bus.publish_all(vec![publication]).await {
            tracing::debug!(%error, "the ledger's epoch was not published");
        }
        Ok(())
    }

    async fn read_ledger(&self) -> sqlx::Result<LedgerRow> {
        let mut db = self.by_key.take().await?;
        let row = sqlx::query_as!(
            LedgerRow,
            r#"select l.id, l.place as noted_place, l.mark, l.marked_at, l.held_at is not null as "is_held!",
                  (select c.system_identifier::text from pg_control_system() c) || ':'
                  || (select d.oid::text from pg_database d where d.datname = current_database()) || ':'
                  || left(pg_walfile_name(pg_current_wal_lsn()), 8) as "place!"
           from ledger l"#
        )
        .fetch_one(&mut *db)
        .await?;
        db.put_back();
        Ok(row)
    }

    /// Pauses a restored ledger once: the first process that detects it does. A ledger that is paused already keeps its reason.
    async fn pause_ledger(
        &self,
        row: &LedgerRow,
        why: &str,
        published: PublishedEpoch,
        furthest_seen: i64,
    ) -> sqlx::Result<()> {
        let published_at = if let PublishedEpoch::Epoch(_, at) = published { Some(at) } else { None };
        let mut tx = self.by_key.begin().await?;
        let held = sqlx::query!(
            r#"update ledger
           set held_by = case when held_at is null then 'engine' else held_by end,
               held_reason = case when held_at is null then $5 else held_reason end,
               gap_from = case when held_at is null then marked_at else gap_from end,
               gap_to = case when held_at is null then coalesce($6, now()) else gap_to end,
               held_at = coalesce(held_at, now()),
               place = $4, mark = greatest(mark, $7) + $8, marked_at = now()
           where id = $1 and mark = $2 and place is not distinct from $3
           returning gap_from, gap_to"#,
            row.id,
            row.mark,
            row.noted_place,
            row.place,
            why,
            published_at,
            furthest_seen.max(published.mark()),
            EPOCH_JUMP,
        )
        .fetch_optional(&mut *tx)
        .await?;
        if let Some(gap) = held.filter(|_| !row.is_held) {
            let record = AuditRecord {
                actor: "engine",
                action: "restore.hold",
                subject: row.id.to_string(),
                detail: json!({"reason": why, "gap_from": gap.gap_from, "gap_to": gap.gap_to}),
                ..AuditRecord::default()
            };
            audit::write(&mut *tx, &[record]).await?;
        }
        tx.commit().await?;
        tracing::error!(reason = why, "the ledger is paused: nothing leaves until `postrider restore release`");
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EpochDecision {
    Current,
    Restored(&'static str),
    /// Only the bus can decide, and it is unavailable.
    Undecided,
}

/// Decides about the ledger. `furthest_seen` is the highest epoch that this process has seen.
fn decide(row: &LedgerRow, published: PublishedEpoch, furthest_seen: i64) -> EpochDecision {
    if published.mark().max(furthest_seen) > row.mark {
        return EpochDecision::Restored(BEHIND);
    }
    let noted = row.noted_place.as_deref().unwrap_or(&row.place);
    if database_of(noted) != database_of(&row.place) {
        return EpochDecision::Restored(MOVED);
    }
    // A failover begins a new timeline, too. It loses nothing whose epoch was published.
    let is_new_timeline = noted != row.place;
    match published {
        PublishedEpoch::Missing if is_new_timeline => EpochDecision::Restored(NEW_TIMELINE),
        // A process that has seen no epoch yet publishes none either: it would replace the one that shows that the ledger went back.
        PublishedEpoch::Unavailable if is_new_timeline || furthest_seen == 0 => EpochDecision::Undecided,
        PublishedEpoch::Epoch(..) | PublishedEpoch::Missing | PublishedEpoch::Unavailable => EpochDecision::Current,
    }
}

/// Cluster and database of a location, without the timeline.
fn database_of(place: &str) -> &str {
    place.rsplit_once(':').map_or(place, |(home, _)| home)
}

#[cfg(test)]
mod tests {
    use super::{
        EpochDecision::{Current, Restored, Undecided},
        PublishedEpoch::{Epoch, Missing, Unavailable},
        *,
    };
    use rstest::rstest;

    const HERE: &str = "77:16384:00000001";
    const AFTER_RECOVERY: &str = "77:16384:00000002";
    const OTHER_DATABASE: &str = "77:20000:00000001";
    const OTHER_CLUSTER: &str = "99:16384:00000001";

    fn epoch(mark: i64) -> PublishedEpoch {
        Epoch(mark, DateTime::UNIX_EPOCH)
    }

    #[rstest]
    #[case::never_seen(None, HERE, Missing, 0, Current)]
    #[case::as_ever(Some(HERE), HERE, epoch(10), 10, Current)]
    #[case::the_bus_is_late(Some(HERE), HERE, epoch(3), 9, Current)]
    #[case::the_bus_is_away(Some(HERE), HERE, Unavailable, 9, Current)]
    #[case::nothing_was_seen_and_the_bus_is_away(Some(HERE), HERE, Unavailable, 0, Undecided)]
    #[case::the_bus_was_emptied(Some(HERE), HERE, Missing, 9, Current)]
    #[case::behind_the_bus(Some(HERE), HERE, epoch(11), 0, Restored(BEHIND))]
    #[case::behind_what_was_seen(Some(HERE), HERE, Unavailable, 11, Restored(BEHIND))]
    #[case::a_failover(Some(HERE), AFTER_RECOVERY, epoch(10), 0, Current)]
    #[case::recovered_behind(Some(HERE), AFTER_RECOVERY, epoch(11), 0, Restored(BEHIND))]
    #[case::recovered_and_nobody_knows(Some(HERE), AFTER_RECOVERY, Missing, 0, Restored(NEW_TIMELINE))]
    #[case::recovered_and_the_bus_is_away(Some(HERE), AFTER_RECOVERY, Unavailable, 0, Undecided)]
    #[case::another_database(Some(HERE), OTHER_DATABASE, epoch(10), 10, Restored(MOVED))]
    #[case::another_cluster(Some(HERE), OTHER_CLUSTER, Missing, 0, Restored(MOVED))]
    fn a_ledger_that_went_back_or_moved_is_detected(
        #[case] noted: Option<&str>,
        #[case] place: &str,
        #[case] published: PublishedEpoch,
        #[case] furthest_seen: i64,
        #[case] expected: EpochDecision,
    ) {
        let row = LedgerRow {
            id: Uuid::nil(),
            noted_place: noted.map(str::to_owned),
            place: place.to_owned(),
            mark: 10,
            marked_at: DateTime::UNIX_EPOCH,
            is_held: false,
        };
        assert_eq!(decide(&row, published, furthest_seen), expected);
    }
}
