//! The ledger's mark: how a restored ledger is told from the one that was mailed from.
//!
//! A restored ledger is older than the world: what was sent after the moment it shows stands there as queued, and the engine would
//! send it again. So the ledger counts: every few seconds a process that sends mail moves its mark on, and tells the bus once that is committed. The
//! bus can never be ahead of the ledger, unless the ledger went back. And the ledger notes where it lives: a dump put into another
//! cluster or database says so by itself, even where the bus has lost everything.
//!
//! The bus alone losing its store is no reason to stop: the ledger fills it again. Only with both in doubt (no mark on the bus, and
//! Postgres has begun a new timeline since, as it does after recovery to a point in time) the ledger is held.

use std::time::Duration;

use async_nats::jetstream::stream::LastRawMessageErrorKind;
use chrono::{DateTime, Utc};
use schemas::{
    LedgerMark,
    subjects::{self, stream},
};
use serde_json::json;
use sqlx::PgPool;
use thiserror::Error;
use uuid::Uuid;

use crate::{Bus, BusError, Publication};

/// How often a process looks, and how often the mark moves on at most.
pub const EVERY: Duration = Duration::from_secs(2);
/// Longest one look may take.
pub const LOOK_MAX: Duration = Duration::from_secs(15);
/// How long the bus may take to say what it was told last. Longer, and it counts as away.
const BUS_MAX: Duration = Duration::from_secs(3);
/// How far the mark of a held ledger jumps ahead: past whatever any process may have seen of its old life.
const JUMP: i64 = 1_000;

/// What went wrong with a look.
#[derive(Debug, Error)]
pub enum MarkError {
    /// Postgres was away.
    #[error("the ledger")]
    Ledger(#[from] sqlx::Error),
    /// The mark could not be told.
    #[error("the bus")]
    Bus(#[from] BusError),
    /// It could not be written down.
    #[error("the mark")]
    Json(#[from] serde_json::Error),
    /// Postgres has begun a new timeline, and the bus, which may know how far the ledger had come, is away.
    #[error("the bus is asked first")]
    Undecided,
}

/// What a look came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The ledger is held, by this look or before it.
    pub is_held: bool,
}

/// The ledger as it says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LedgerRow {
    id: Uuid,
    noted_place: Option<String>,
    place: String,
    mark: i64,
    marked_at: DateTime<Utc>,
    is_held: bool,
}

/// What the bus says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    /// It is away.
    Nothing,
    /// It has no mark of this ledger.
    NoMark,
    /// The last one it was told.
    Mark(i64, DateTime<Utc>),
}

/// Why a ledger counts as restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Restored {
    /// It lives in another cluster or database than it did.
    Elsewhere,
    /// It is behind what it was seen at.
    Behind,
    /// Postgres recovered to some moment, and nobody knows how far the ledger had come.
    NewTimeline,
}

impl Restored {
    fn as_str(self) -> &'static str {
        match self {
            Self::Elsewhere => "restored: the ledger lives in another cluster or database than it did",
            Self::Behind => "restored: the ledger is older than what the bus was told of it",
            Self::NewTimeline => {
                "restored: Postgres recovered to a new timeline, and the bus knows no mark to compare with"
            }
        }
    }
}

/// Looks, compares, and moves the mark on.
#[derive(Debug)]
pub struct Keeper {
    pool: PgPool,
    bus: Bus,
    /// Whether this process moves the mark on. The others only compare.
    moves: bool,
    /// The furthest this process has seen, and of which ledger.
    seen: Option<(Uuid, i64)>,
}

impl Keeper {
    /// For one process. `pool` must be in the stages' role.
    #[must_use]
    pub fn new(pool: PgPool, bus: Bus, moves: bool) -> Self {
        Self { pool, bus, moves, seen: None }
    }

    /// One look. A ledger that turns out restored is held.
    ///
    /// # Errors
    /// When Postgres is away, or the mark cannot be told.
    pub async fn keep(&mut self) -> Result<Found, MarkError> {
        let ledger = read(&self.pool).await?.id;
        let heard = self.hear(ledger).await;
        // Read after the bus was heard: meanwhile another process may have moved the mark on and told it, and a ledger that was read
        // before that would look restored.
        let row = read(&self.pool).await?;
        if row.id != ledger {
            return Err(MarkError::Undecided);
        }
        let seen = self.seen.filter(|(id, _)| *id == row.id).map_or(0, |(_, mark)| mark);
        let judgement = judge(&row, heard, seen);
        if judgement == Judgement::Undecided {
            return Err(MarkError::Undecided);
        }
        if let Judgement::Restored(why) = judgement {
            let furthest = match heard {
                Heard::Mark(mark, _) => seen.max(mark),
                Heard::Nothing | Heard::NoMark => seen,
            };
            hold(&self.pool, &row, why, heard, furthest).await?;
            self.seen = None;
            return Ok(Found { is_held: true });
        }
        self.seen = Some((row.id, row.mark.max(seen)));
        if row.noted_place.as_deref() != Some(row.place.as_str()) {
            note_place(&self.pool, &row).await?;
        }
        if self.moves {
            self.move_on(&row).await?;
        }
        Ok(Found { is_held: row.is_held })
    }

    /// What the bus was told last of this ledger.
    async fn hear(&self, ledger: Uuid) -> Heard {
        let asked = async {
            let marks = self.bus.jetstream().get_stream_no_info(self.bus.prefixed(stream::MARKS)).await.ok()?;
            match marks.get_last_raw_message_by_subject(&self.bus.prefixed(subjects::MARK)).await {
                Ok(message) => Some(match serde_json::from_slice::<LedgerMark>(&message.payload) {
                    Ok(told) if told.ledger_id == ledger => Heard::Mark(told.mark, told.at),
                    _ => Heard::NoMark,
                }),
                Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Some(Heard::NoMark),
                Err(_) => None,
            }
        };
        tokio::time::timeout(BUS_MAX, asked).await.ok().flatten().unwrap_or(Heard::Nothing)
    }

    /// Moves the mark on, if nobody has for a while, and tells the bus. In this order: told is only what is committed.
    async fn move_on(&mut self, row: &LedgerRow) -> Result<(), MarkError> {
        let moved = sqlx::query!(
            r#"update ledger set mark = mark + 1, marked_at = clock_timestamp()
               where id = $1 and marked_at <= clock_timestamp() - make_interval(secs => $2)
               returning mark, marked_at"#,
            row.id,
            EVERY.as_secs_f64() * 0.9,
        )
        .fetch_optional(&self.pool)
        .await?;
        let Some(moved) = moved else { return Ok(()) };
        self.seen = Some((row.id, moved.mark));
        let told = LedgerMark { ledger_id: row.id, mark: moved.mark, at: moved.marked_at };
        let id = format!("mark-{}-{}", row.id.simple(), moved.mark);
        let publication = Publication::json(subjects::MARK.to_owned(), id, &told)?;
        // The bus away costs nothing but the comparison with what it will not have heard.
        if let Err(error) = self.bus.publish_all(vec![publication]).await {
            tracing::debug!(%error, "the bus was not told the ledger's mark");
        }
        Ok(())
    }
}

/// What is to be thought of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judgement {
    /// It is the one that was mailed from.
    Fine,
    /// It is not.
    Restored(Restored),
    /// Only the bus can tell, and it is away.
    Undecided,
}

/// Judges the ledger. `seen` is the furthest this process has seen it.
fn judge(row: &LedgerRow, heard: Heard, seen: i64) -> Judgement {
    let told = match heard {
        Heard::Mark(mark, _) => mark,
        Heard::Nothing | Heard::NoMark => 0,
    };
    if told.max(seen) > row.mark {
        return Judgement::Restored(Restored::Behind);
    }
    let Some(noted) = row.noted_place.as_deref().filter(|noted| *noted != row.place) else { return Judgement::Fine };
    if home_of(noted) != home_of(&row.place) {
        return Judgement::Restored(Restored::Elsewhere);
    }
    // A failover begins a new timeline, too, and loses nothing that the bus was told of.
    match heard {
        Heard::Mark(..) => Judgement::Fine,
        Heard::NoMark => Judgement::Restored(Restored::NewTimeline),
        Heard::Nothing => Judgement::Undecided,
    }
}

/// Cluster and database, without the timeline.
fn home_of(place: &str) -> &str {
    place.rsplit_once(':').map_or(place, |(home, _)| home)
}

async fn read(pool: &PgPool) -> sqlx::Result<LedgerRow> {
    sqlx::query_as!(
        LedgerRow,
        r#"select l.id, l.place as noted_place, l.mark, l.marked_at, l.held_at is not null as "is_held!",
                  (select c.system_identifier::text from pg_control_system() c) || ':'
                  || (select d.oid::text from pg_database d where d.datname = current_database()) || ':'
                  || left(pg_walfile_name(pg_current_wal_lsn()), 8) as "place!"
           from ledger l"#
    )
    .fetch_one(pool)
    .await
}

async fn note_place(pool: &PgPool, row: &LedgerRow) -> sqlx::Result<()> {
    sqlx::query!("update ledger set place = $2 where id = $1", row.id, row.place).execute(pool).await.map(drop)
}

/// Holds a restored ledger, once: of several processes that see it the first one does. What is held already stays as it is held.
async fn hold(pool: &PgPool, row: &LedgerRow, why: Restored, heard: Heard, furthest: i64) -> sqlx::Result<()> {
    let told_at = match heard {
        Heard::Mark(_, at) => Some(at),
        Heard::Nothing | Heard::NoMark => None,
    };
    let mut tx = pool.begin().await?;
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
        why.as_str(),
        told_at,
        furthest,
        JUMP,
    )
    .fetch_optional(&mut *tx)
    .await?;
    if let Some(gap) = held
        && !row.is_held
    {
        sqlx::query!(
            "insert into audit_log (id, actor, action, subject, detail) values ($1, 'engine', 'restore.hold', $2, $3)",
            schemas::new_id(),
            row.id.to_string(),
            json!({"reason": why.as_str(), "gap_from": gap.gap_from, "gap_to": gap.gap_to}),
        )
        .execute(&mut *tx)
        .await?;
    }
    tx.commit().await?;
    tracing::error!(reason = why.as_str(), "the ledger is held: nothing leaves until `postrider restore release`");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const HERE: &str = "77:16384:00000001";
    const AFTER_RECOVERY: &str = "77:16384:00000002";
    const OTHER_DATABASE: &str = "77:20000:00000001";
    const OTHER_CLUSTER: &str = "99:16384:00000001";

    #[rstest]
    #[case::never_seen(None, HERE, Heard::NoMark, 0, Judgement::Fine)]
    #[case::as_ever(Some(HERE), HERE, Heard::Mark(10, DateTime::UNIX_EPOCH), 10, Judgement::Fine)]
    #[case::the_bus_is_late(Some(HERE), HERE, Heard::Mark(3, DateTime::UNIX_EPOCH), 9, Judgement::Fine)]
    #[case::the_bus_is_away(Some(HERE), HERE, Heard::Nothing, 9, Judgement::Fine)]
    #[case::the_bus_was_emptied(Some(HERE), HERE, Heard::NoMark, 9, Judgement::Fine)]
    #[case::behind_the_bus(
        Some(HERE),
        HERE,
        Heard::Mark(11, DateTime::UNIX_EPOCH),
        0,
        Judgement::Restored(Restored::Behind)
    )]
    #[case::behind_what_was_seen(Some(HERE), HERE, Heard::Nothing, 11, Judgement::Restored(Restored::Behind))]
    #[case::a_failover(Some(HERE), AFTER_RECOVERY, Heard::Mark(10, DateTime::UNIX_EPOCH), 0, Judgement::Fine)]
    #[case::recovered_behind(
        Some(HERE),
        AFTER_RECOVERY,
        Heard::Mark(11, DateTime::UNIX_EPOCH),
        0,
        Judgement::Restored(Restored::Behind)
    )]
    #[case::recovered_and_nobody_knows(
        Some(HERE),
        AFTER_RECOVERY,
        Heard::NoMark,
        0,
        Judgement::Restored(Restored::NewTimeline)
    )]
    #[case::recovered_and_the_bus_is_away(Some(HERE), AFTER_RECOVERY, Heard::Nothing, 0, Judgement::Undecided)]
    #[case::another_database(
        Some(HERE),
        OTHER_DATABASE,
        Heard::Mark(10, DateTime::UNIX_EPOCH),
        10,
        Judgement::Restored(Restored::Elsewhere)
    )]
    #[case::another_cluster(Some(HERE), OTHER_CLUSTER, Heard::NoMark, 0, Judgement::Restored(Restored::Elsewhere))]
    fn a_ledger_that_went_back_or_moved_is_known(
        #[case] noted: Option<&str>,
        #[case] place: &str,
        #[case] heard: Heard,
        #[case] seen: i64,
        #[case] expected: Judgement,
    ) {
        let row = LedgerRow {
            id: Uuid::nil(),
            noted_place: noted.map(str::to_owned),
            place: place.to_owned(),
            mark: 10,
            marked_at: DateTime::UNIX_EPOCH,
            is_held: false,
        };
        assert_eq!(judge(&row, heard, seen), expected);
    }
}
