//! PauseSwitches: what an operator holds back. They stand in Postgres, so they outlive processes and hold while NATS is away; a nudge on the
//! bus makes them known at once, and a look every second makes the nudge dispensable.
//!
//! A paused stage starts nothing: it neither fetches nor looks for work, and finishes what it has in hand. A tenant's pause and a
//! campaign's are not here: the ledger's last gate reads them itself.

use std::{collections::BTreeSet, time::Duration};

use sqlx::PgPool;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{Bus, Gauge, Notifier, causes::chain, db, mark};

/// How soon a lever is known without a nudge.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest one look may take.
const LOOK_MAX: Duration = Duration::from_secs(3);

/// Every stage there is.
pub const STAGES: [&str; 8] =
    ["audience", "compliance", "rendering", "delivery", "engagement", "attribution", "webhooks", "sequencing"];
/// The stages that reach the world outside: what they do cannot be taken back. A held ledger keeps these from starting.
pub const OUTBOUND: [&str; 3] = ["delivery", "webhooks", "sequencing"];

/// What is held back, as a process knows it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PauseSwitches(watch::Receiver<Held>);

/// What is known at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Held {
    /// Whether the levers were read at all. Until then everything rests: a pause outlives a restart.
    is_read: bool,
    /// Whether the ledger is known to be the one that was mailed from.
    is_vouched: bool,
    /// Whether it is held.
    is_held: bool,
    stages: BTreeSet<String>,
}

impl Held {
    fn rests(&self, stage: &str) -> bool {
        let is_outbound = OUTBOUND.contains(&stage);
        !self.is_read || self.is_paused(stage) || is_outbound && !self.is_vouched
    }

    /// Somebody wants it so.
    fn is_paused(&self, stage: &str) -> bool {
        self.stages.contains(stage) || self.is_held && OUTBOUND.contains(&stage)
    }
}

impl PauseSwitches {
    /// Nothing is held back, ever: for what runs without an operator.
    #[must_use]
    pub fn released() -> Self {
        Self(watch::channel(Held { is_read: true, is_vouched: true, ..Held::default() }).1)
    }

    /// Follows the levers until shut down. `pool` must be in the stages' role. Processes that send mail move the ledger's mark on
    /// (`moves_mark`), the others only compare it.
    #[must_use]
    pub fn follow(pool: PgPool, bus: Bus, nudges: Notifier, moves_mark: bool, shutdown: CancellationToken) -> Self {
        let (known, receiver) = watch::channel(Held::default());
        let keeper = mark::Keeper::new(pool.clone(), bus, moves_mark);
        tokio::spawn(vouch(keeper, known.clone(), shutdown.clone()));
        tokio::spawn(look_often(pool, known, nudges, shutdown));
        Self(receiver)
    }

    /// Whether a stage is to start nothing.
    #[must_use]
    pub fn is_paused(&self, stage: &str) -> bool {
        self.0.borrow().rests(stage)
    }

    /// Returns when the stage may start something; at once, if it may. Drop it to stop waiting.
    pub async fn until_running(&self, stage: &str) {
        let mut known = self.0.clone();
        if known.wait_for(|held| !held.rests(stage)).await.is_err() {
            // Nobody follows the levers any more: the process is stopping.
            std::future::pending::<()>().await;
        }
    }

    /// Returns when something about the levers has changed.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Reads the levers again and again. While Postgres is away the last ones stand.
async fn look_often(pool: PgPool, known: watch::Sender<Held>, nudges: Notifier, shutdown: CancellationToken) {
    loop {
        match tokio::time::timeout(LOOK_MAX, look(&pool)).await {
            Ok(Ok(seen)) => follow(&known, &seen),
            Ok(Err(error)) => {
                tracing::debug!(error = db::describe(&error), "the levers could not be read; the last ones stand")
            }
            Err(_) => tracing::debug!("the levers took too long to read; the last ones stand"),
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = nudges.notified() => {}
        }
    }
}

/// What one look saw.
struct Seen {
    stages: BTreeSet<String>,
    is_held: bool,
    tenants: i64,
}

async fn look(pool: &PgPool) -> sqlx::Result<Seen> {
    let row = sqlx::query!(
        r#"select coalesce(array(select p.stage from stage_pauses p), '{}') as "stages!", l.held_at is not null as "is_held!",
                  (select count(*) from tenants t where t.paused_at is not null) as "tenants!"
           from ledger l"#
    )
    .fetch_one(pool)
    .await?;
    Ok(Seen { stages: row.stages.into_iter().collect(), is_held: row.is_held, tenants: row.tenants })
}

fn follow(known: &watch::Sender<Held>, seen: &Seen) {
    Gauge::TenantsPaused.set(seen.tenants as f64, []);
    known.send_if_modified(|held| {
        let next = Held { is_read: true, is_held: seen.is_held, stages: seen.stages.clone(), ..held.clone() };
        let is_news = *held != next;
        if is_news && held.is_read {
            tracing::info!(paused = ?next.stages, held = next.is_held, "levers moved");
        }
        *held = next;
        is_news
    });
    let held = known.borrow();
    for stage in STAGES {
        Gauge::Paused.set(f64::from(u8::from(held.is_paused(stage))), [("stage", stage)]);
    }
}

/// Makes sure that the ledger was not restored, and keeps its mark moving.
async fn vouch(mut keeper: mark::Keeper, known: watch::Sender<Held>, shutdown: CancellationToken) {
    loop {
        match tokio::time::timeout(mark::LOOK_MAX, keeper.keep()).await {
            Ok(Ok(found)) => {
                known.send_if_modified(|held| {
                    let next = Held { is_vouched: true, is_held: held.is_held || found.is_held, ..held.clone() };
                    let is_news = *held != next;
                    *held = next;
                    is_news
                });
            }
            Ok(Err(error)) => tracing::debug!(error = chain(&error), "the ledger could not be vouched for yet"),
            Err(_) => tracing::debug!("the ledger could not be vouched for in time"),
        }
        if shutdown.run_until_cancelled(tokio::time::sleep(mark::EVERY)).await.is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(stages: &[&str], is_held: bool) -> Held {
        let stages = stages.iter().map(|stage| (*stage).to_owned()).collect();
        Held { is_read: true, is_vouched: true, is_held, stages }
    }

    #[test]
    fn until_the_levers_are_read_everything_rests() {
        let unread = Held::default();
        assert!(["audience", "delivery", "engagement"].iter().all(|stage| unread.rests(stage)));
    }

    #[test]
    fn a_pause_holds_its_stage_and_no_other() {
        let held = held(&["compliance"], false);
        assert!(held.rests("compliance") && !held.rests("delivery") && !held.rests("audience"));
    }

    #[test]
    fn a_held_ledger_and_one_nobody_vouches_for_keep_what_leaves_from_leaving() {
        let unvouched = Held { is_vouched: false, ..held(&[], false) };
        for held in [held(&[], true), unvouched] {
            assert!(OUTBOUND.iter().all(|stage| held.rests(stage)), "{held:?}");
            assert!(
                ["audience", "compliance", "rendering", "engagement", "attribution"]
                    .iter()
                    .all(|stage| !held.rests(stage))
            );
        }
    }
}
