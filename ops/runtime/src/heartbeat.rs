//! Heartbeats: each process says in the database that it runs, which stages, with which settings (names only), and which of
//! its sweeps fail. `GET /v1/platform/health` reads them.

use std::time::Duration;

use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::PauseSwitches;

/// How often a process is heard of.
pub const EVERY: Duration = Duration::from_secs(5);
/// The same while a paused stage finishes what it has in hand: somebody may be waiting for it.
const EVERY_WHILE_DRAINING: Duration = Duration::from_millis(500);
/// Longest a beat may take; the next one comes anyway.
const BEAT_MAX: Duration = Duration::from_secs(3);

/// One stage of a process, at one beat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// audience, …, ingress.
    pub stage: &'static str,
    /// Its sweeps whose last run failed.
    pub failing_sweeps: Vec<String>,
    /// It starts nothing new.
    pub is_paused: bool,
    /// Pieces of work it has not finished yet.
    pub in_hand: u32,
}

impl Beat {
    fn is_draining(&self) -> bool {
        self.is_paused && self.in_hand > 0
    }
}

/// A process that is heard of until it stops.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    pool: PgPool,
    process_id: Uuid,
    name: String,
    settings: Vec<String>,
}

impl Heartbeat {
    /// A process with a new id and how it calls itself. `settings` are the names of those it was given.
    #[must_use]
    pub fn new(pool: PgPool, name: &str, settings: Vec<String>) -> Self {
        Self { pool, process_id: schemas::new_id(), name: name.to_owned(), settings }
    }

    /// Beats until shut down, then takes its rows back: a process that stops on purpose is not missed. A lever that moved is said
    /// at once.
    pub async fn run(
        self,
        beats: impl Fn() -> Vec<Beat> + Send,
        mut levers: PauseSwitches,
        shutdown: CancellationToken,
    ) {
        loop {
            let now = beats();
            let pause = if now.iter().any(Beat::is_draining) { EVERY_WHILE_DRAINING } else { EVERY };
            match tokio::time::timeout(BEAT_MAX, self.beat(&now)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::debug!(transient = crate::db::is_transient(&error), "a heartbeat was not stored")
                }
                Err(_) => tracing::debug!("a heartbeat took too long"),
            }
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
                () = levers.changed() => {}
            }
        }
        // While Postgres is away the rows stay, and are swept in a day.
        let _ = tokio::time::timeout(BEAT_MAX, self.leave()).await;
    }

    /// Renews the rows of this process, and sweeps those nobody has renewed for a day.
    ///
    /// # Errors
    /// When Postgres is away.
    pub async fn beat(&self, beats: &[Beat]) -> sqlx::Result<()> {
        // An array of arrays is a matrix in Postgres, so each list travels as one text.
        let stages: Vec<String> = beats.iter().map(|beat| beat.stage.to_owned()).collect();
        let failing: Vec<String> = beats.iter().map(|beat| beat.failing_sweeps.join(",")).collect();
        let paused: Vec<bool> = beats.iter().map(|beat| beat.is_paused).collect();
        let in_hand: Vec<i32> = beats.iter().map(|beat| i32::try_from(beat.in_hand).unwrap_or(i32::MAX)).collect();
        sqlx::query!(
            "with silent as (
                 delete from heartbeats where (process_id, stage) in (
                     select process_id, stage from heartbeats where seen_at < now() - interval '1 day'
                     for update skip locked)
             )
             insert into heartbeats as h (process_id, stage, version, failing_sweeps, settings, name, paused, in_hand)
             select $1, b.stage, $2, array_remove(string_to_array(b.failing, ','), ''), $5, $6, b.paused, b.in_hand
             from unnest($3::text[], $4::text[], $7::bool[], $8::integer[]) as b (stage, failing, paused, in_hand)
             on conflict (process_id, stage) do update
             set seen_at = now(), failing_sweeps = excluded.failing_sweeps, settings = excluded.settings, paused = excluded.paused,
                 in_hand = excluded.in_hand",
            self.process_id,
            env!("CARGO_PKG_VERSION"),
            &stages,
            &failing,
            &self.settings,
            self.name,
            &paused,
            &in_hand,
        )
        .execute(&self.pool)
        .await
        .map(drop)
    }

    /// Takes the rows of this process back.
    async fn leave(&self) -> sqlx::Result<()> {
        sqlx::query!("delete from heartbeats where process_id = $1", self.process_id)
            .execute(&self.pool)
            .await
            .map(drop)
    }
}
