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
use stage_rig::{Rig, settings, until};

/// Starts the stage as one process would.
async fn start(rig: &Rig, arguments: &[&str]) -> Deps {
    let deps = rig.process();
    audience::start(&deps, &settings::<Settings>(arguments));
    deps
}

/// Waits until the audience of the one campaign that is launched is written to the ledger.
async fn materialized(rig: &Rig) {
    until("materialized", async || {
        rig.number("select count(*) from campaigns where materialized_at is not null").await == 1
    })
    .await;
}
