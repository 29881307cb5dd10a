//! The audience stage's sweeps. Each may run in any number of processes at once: rows are taken with `skip locked`, and a
//! statement changes only what still is as it was found.

mod audit;
mod batches;
mod close;
mod complete;
mod decide;
mod hand_on;
mod partitions;
mod requests;
mod wake;
mod watch;

use std::sync::Arc;

use runner::{Deps, Stage, Sweep};
use tokio::sync::Notify;

use crate::{Erasures, Settings, retention::Retention, stage::Audience};

/// Starts all of them.
pub(crate) fn start(deps: &Deps, settings: &Settings, launched: &Arc<Notify>) {
    let (pool, bus) = (&deps.pool, &deps.bus);
    let sweeps: [Arc<dyn Sweep>; 11] = [
        Arc::new(hand_on::HandOn::new(pool.clone(), bus.clone(), settings, launched.clone())),
        Arc::new(batches::Batches::new(pool.clone(), bus.clone(), settings)),
        Arc::new(requests::Requests::new(pool.clone(), bus.clone())),
        Arc::new(close::Close::new(pool.clone())),
        Arc::new(wake::Wake::new(pool.clone())),
        Arc::new(watch::Watch::new(pool.clone())),
        Arc::new(decide::Decide::new(pool.clone())),
        Arc::new(complete::Complete::new(pool.clone())),
        Arc::new(partitions::Partitions::new(pool.clone())),
        Arc::new(Retention::new(pool.clone(), settings.retention.clone())),
        Arc::new(Erasures(pool.clone())),
    ];
    for sweep in sweeps {
        deps.runner.start_sweep(Audience::NAME, sweep);
    }
}
