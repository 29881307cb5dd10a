//! Heartbeats: each process writes to the database that it runs, which stages, with which settings (names only), and which of
//! its sweeps fail. `GET /v1/platform/health` reads them.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{PauseSwitches, column, plans::PreparedPool};

/// How often a process writes its heartbeat.
pub const INTERVAL: Duration = Duration::from_secs(5);
/// How often it writes its heartbeat while a paused stage finishes its work: `postrider drain` may be waiting for it.
const DRAIN_INTERVAL: Duration = Duration::from_millis(500);
const BEAT_TIMEOUT: Duration = Duration::from_secs(3);

/// One stage of a process in one heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// audience, …, ingress.
    pub stage: &'static str,
    /// Its sweeps whose last run failed.
    pub failing_sweeps: Vec<String>,
    /// True if the stage is paused.
    pub is_paused: bool,
    /// The number of its unfinished pieces of work.
    pub in_hand: u32,
}

/// Writes the heartbeats of a process until it stops.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    by_key: PreparedPool,
    process_id: Uuid,
    name: String,
    settings: Vec<String>,
}

impl Heartbeat {
    /// The heartbeat of a process under a new id. `settings` are the names of the settings it was given.
    #[must_use]
    pub fn new(by_key: PreparedPool, name: &str, settings: Vec<String>) -> Self {
        Self { by_key, process_id: schemas::new_id(), name: name.to_owned(), settings }
    }

    /// Writes heartbeats until shutdown and until its work is finished: `postrider drain` waits for that, too. Then it deletes its rows: a
    /// process that stops on purpose does not count as missing. A changed pause switch is written at once.
    pub async fn run(
        self,
        beats: impl Fn() -> Vec<Beat> + Send,
        mut switches: PauseSwitches,
        shutdown: CancellationToken,
    ) {
        loop {
            let (is_stopping, now) = (shutdown.is_cancelled(), beats());
            if is_stopping && now.iter().all(|beat| beat.in_hand == 0) {
                break;
            }
            let is_draining = now.iter().any(|beat| beat.is_paused && beat.in_hand > 0);
            let pause = if is_stopping || is_draining { DRAIN_INTERVAL } else { INTERVAL };
            match tokio::time::timeout(BEAT_TIMEOUT, self.beat(&now)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::debug!(transient = crate::db::is_transient(&error), "a heartbeat was not stored")
                }
                Err(_) => tracing::debug!("a heartbeat took too long"),
            }
            tokio::select! {
                () = shutdown.cancelled(), if !is_stopping => {}
                () = tokio::time::sleep(pause) => {}
                () = switches.changed() => {}
            }
        }
        // If Postgres is unavailable the rows stay, and are deleted after a day.
        let _ = tokio::time::timeout(BEAT_TIMEOUT, self.delete_rows()).await;
    }

    /// Renews the rows of this process, and deletes rows that were not renewed for a day.
    pub async fn beat(&self, beats: &[Beat]) -> sqlx::Result<()> {
        let mut db = self.by_key.take().await?;
        // An array of arrays is a matrix in Postgres, so each list travels as one text. Asynchronous commit: what a crash of Postgres loses,
        // the next heartbeat writes again.
        sqlx::query!(
            "with silent as (
                 delete from heartbeats where (process_id, stage) in (
                     select process_id, stage from heartbeats where seen_at < now() - interval '1 day'
                     for update skip locked)
             )
             insert into heartbeats as h (process_id, stage, version, failing_sweeps, settings, name, paused, in_hand)
             select $1, b.stage, $2, array_remove(string_to_array(b.failing, ','), ''), $5, $6, b.paused, b.in_hand
             from unnest($3::text[], $4::text[], $7::bool[], $8::integer[]) as b (stage, failing, paused, in_hand)
             where set_config('synchronous_commit', 'off', true) = 'off'
             on conflict (process_id, stage) do update
             set seen_at = now(), failing_sweeps = excluded.failing_sweeps, settings = excluded.settings, paused = excluded.paused,
                 in_hand = excluded.in_hand",
            self.process_id,
            env!("CARGO_PKG_VERSION"),
            &column(beats, |beat| beat.stage.to_owned()),
            &column(beats, |beat| beat.failing_sweeps.join(",")),
            &self.settings,
            self.name,
            &column(beats, |beat| beat.is_paused),
            &column(beats, |beat| i32::try_from(beat.in_hand).unwrap_or(i32::MAX)),
        )
        .execute(&mut *db)
        .await?;
        db.put_back();
        Ok(())
    }

    async fn delete_rows(&self) -> sqlx::Result<()> {
        let mut db = self.by_key.take().await?;
        sqlx::query!("delete from heartbeats where process_id = $1", self.process_id).execute(&mut *db).await?;
        db.put_back();
        Ok(())
    }
}
