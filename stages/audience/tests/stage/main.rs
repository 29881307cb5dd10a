//! The audience stage on its own database and streams.
#![allow(clippy::unwrap_used, missing_docs)]

mod confirmations;
mod count;
mod dispatch;
mod fields;
mod launch;
mod message;
mod pace;
mod pinned;
mod ranges;
mod retention;
mod segment;
mod stops;
mod sweeps;
mod transactional;
mod variants;

use audience::Settings;
use runner::Deps;
use runtime::{Notifier, PauseSwitches, plans::PreparedPool};
use serde_json::Value;
use stage_rig::{Rig, settings, until};
use uuid::Uuid;

/// Starts the stage as one process would.
async fn start(rig: &Rig, arguments: &[&str]) -> Deps {
    let deps = rig.process();
    audience::start(&deps, &settings::<Settings>(arguments));
    deps
}

/// Runs a statement.
async fn run(rig: &Rig, statement: &str) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&rig.pool).await.unwrap();
}

/// Blocks of the database that a statement touched, from `explain (analyze, buffers, format json)`.
fn blocks_read(explained: &Value) -> u64 {
    let plan = &explained[0]["Plan"];
    plan["Shared Hit Blocks"].as_u64().unwrap() + plan["Shared Read Blocks"].as_u64().unwrap()
}

/// Waits until the audience of the one campaign that is launched is written to the ledger.
async fn materialized(rig: &Rig) {
    until("materialized", async || {
        rig.number("select count(*) from campaigns where materialized_at is not null").await == 1
    })
    .await;
}

/// Sets a batch aside for a day, as a stage does whose process ends each time it works on it.
async fn set_aside(rig: &Rig, tenant: Uuid, batch: Uuid) {
    let by_key = PreparedPool::new(&rig.pool, 1).bulk("test");
    ledger::owed::set_aside(&by_key, tenant, batch).await.unwrap();
}

/// Pauses the ledger, as a restored one is. Answers the switches of a process.
async fn pause_ledger(rig: &Rig) -> PauseSwitches {
    sqlx::query("update ledger set held_at = now()").execute(&rig.pool).await.unwrap();
    let deps = rig.process();
    PauseSwitches::follow(&deps.by_key, rig.bus.clone(), Notifier::default(), true, deps.shutdown)
}

/// Releases the ledger, and waits until its process knows.
async fn release_ledger(rig: &Rig, switches: &PauseSwitches) {
    sqlx::query("update ledger set held_at = null").execute(&rig.pool).await.unwrap();
    until("the release is known", async || !switches.is_ledger_held()).await;
}
