//! The audience stage's sweeps. Each may run in any number of processes at once: rows are taken with `skip locked`, and a
//! statement changes only rows that are still as they were found.

mod audit;
mod complete;
mod decide;
mod fields;
mod partitions;
mod quota;
mod tripwire;

use std::sync::Arc;

use runner::{Deps, Sweep};
use runtime::Notifier;
use sqlx::PgPool;

use ledger::quota::QuotaDefaults;
use ledger::{
    confirmations::SendConfirmations,
    dispatch::{AnnounceRequests, Dispatch, DispatchLimits, ReannounceBatches, ResumeTenants},
    end_stopped::EndStopped,
    erasure::Erasures,
};

use crate::{Settings, retention::Retention};

/// The sweep that warns tenants of a quota that is nearly used up.
#[must_use]
pub fn warn_quotas(pool: PgPool, defaults: QuotaDefaults) -> impl Sweep {
    quota::WarnQuotas { pool, defaults }
}

/// The sweep that takes the values of removed fields out of contacts, so many contacts at a time.
#[must_use]
pub fn remove_fields(pool: PgPool, slice: i64) -> impl Sweep {
    fields::RemoveFields { pool, slice }
}

/// Starts all of them, in the name of the stage.
pub(crate) fn start(
    deps: &Deps,
    stage: &'static str,
    settings: &Settings,
    launched: &Notifier,
    launch_handled: &Notifier,
) {
    let (pool, bus) = (&deps.pool, &deps.bus);
    let limits = DispatchLimits {
        backlog: settings.audience_backlog,
        connection_backlog: settings.audience_connection_backlog,
        reannounce: settings.audience_reannounce,
    };
    let sweeps: [Arc<dyn Sweep>; 14] = [
        Arc::new(Dispatch::new(pool.clone(), deps.by_key.bulk(stage), bus.clone(), limits, launched.clone())),
        Arc::new(ReannounceBatches::new(
            pool.clone(),
            deps.by_key.bulk(stage),
            bus.clone(),
            settings.audience_reannounce,
        )),
        Arc::new(AnnounceRequests::new(pool.clone(), bus.clone()).after(launch_handled.clone())),
        Arc::new(EndStopped(pool.clone())),
        Arc::new(ResumeTenants(pool.clone())),
        Arc::new(tripwire::Tripwire(pool.clone())),
        Arc::new(decide::DecideTests(pool.clone())),
        Arc::new(complete::CompleteCampaigns(pool.clone())),
        Arc::new(warn_quotas(pool.clone(), settings.quota)),
        Arc::new(partitions::CreatePartitions(pool.clone())),
        Arc::new(Retention::new(pool.clone(), settings.retention.clone())),
        Arc::new(remove_fields(pool.clone(), fields::SLICE)),
        Arc::new(Erasures(deps.by_key.bulk(stage))),
        Arc::new(SendConfirmations::new(pool.clone(), settings.confirmations)),
    ];
    for sweep in sweeps {
        deps.runner.start_sweep(stage, sweep);
    }
}
