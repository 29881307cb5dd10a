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
use stage_rig::{Rig, settings};

/// Starts the stage as one process would.
async fn start(rig: &Rig, arguments: &[&str]) -> Deps {
    let deps = rig.process();
    audience::start(&deps, &settings::<Settings>(arguments)).await.unwrap();
    deps
}
