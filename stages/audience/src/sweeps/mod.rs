//! The audience stage's sweeps. Each may run in any number of processes at once: rows are taken with `skip locked`, and a
//! statement changes only what still is as it was found.

mod batches;
mod cancel;
mod complete;
mod hand_on;
mod partitions;
mod requests;

use std::sync::Arc;

use runner::{Deps, Stage, Sweep};

use crate::{Settings, stage::Audience};

/// Starts all of them.
pub(crate) fn start(deps: &Deps, settings: &Settings) {
    let (pool, bus) = (&deps.pool, &deps.bus);
    let sweeps: [Arc<dyn Sweep>; 6] = [
        Arc::new(hand_on::HandOn::new(pool.clone(), bus.clone(), settings)),
        Arc::new(batches::Batches::new(pool.clone(), bus.clone(), settings)),
        Arc::new(requests::Requests::new(pool.clone(), bus.clone())),
        Arc::new(cancel::Cancel::new(pool.clone())),
        Arc::new(complete::Complete::new(pool.clone())),
        Arc::new(partitions::Partitions::new(pool.clone())),
    ];
    for sweep in sweeps {
        deps.runner.start_sweep(Audience::NAME, sweep);
    }
}
