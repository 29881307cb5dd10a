//! The audience stage's sweeps. Each may run in any number of processes at once: rows are taken with `skip locked`, and a
//! statement changes only rows that are still as they were found.

mod complete;
mod decide;
mod fields;
mod quota;
mod tripwire;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use runner::{Deps, StageError, Sweep, SweepSchedule};
use runtime::{AuditRecord, Notifier, audit};
use serde_json::Value;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use ledger::{
    confirmations::SendConfirmations,
    dispatch::{AnnounceRequests, Dispatch, DispatchLimits, ReannounceBatches, ResumeTenants},
    end_stopped::EndStopped,
    erasure::Erasures,
};

use crate::{Settings, retention::Retention};

pub use self::{fields::RemoveFields, quota::WarnQuotas};

/// Starts all of them, in the name of the stage.
pub(crate) fn start(
    deps: &Deps,
    stage: &'static str,
    settings: &Settings,
    launched: &Notifier,
    launch_handled: &Notifier,
) {
    let (pool, bus, by_key) = (&deps.pool, &deps.bus, deps.by_key.bulk(stage));
    let limits = DispatchLimits {
        backlog: settings.audience_backlog.into(),
        connection_backlog: settings.audience_connection_backlog.into(),
        reannounce: settings.audience_reannounce,
    };
    let sweeps: [Arc<dyn Sweep>; 14] = [
        Arc::new(Dispatch::new(pool.clone(), by_key.clone(), bus.clone(), limits, launched.clone())),
        Arc::new(ReannounceBatches::new(pool.clone(), by_key.clone(), bus.clone(), settings.audience_reannounce)),
        Arc::new(AnnounceRequests::new(pool.clone(), bus.clone(), launch_handled.clone())),
        Arc::new(EndStopped(pool.clone())),
        Arc::new(ResumeTenants(pool.clone())),
        Arc::new(tripwire::Tripwire(pool.clone())),
        Arc::new(decide::DecideTests(pool.clone())),
        Arc::new(complete::CompleteCampaigns(pool.clone())),
        Arc::new(WarnQuotas { pool: pool.clone(), defaults: settings.quota }),
        Arc::new(CreatePartitions(pool.clone())),
        Arc::new(Retention { pool: pool.clone(), settings: settings.retention.clone() }),
        Arc::new(RemoveFields { pool: pool.clone(), slice: fields::SLICE }),
        Arc::new(Erasures(by_key)),
        Arc::new(SendConfirmations::new(pool.clone(), deps.runner.pause_gate().clone(), settings.confirmations)),
    ];
    for sweep in sweeps {
        deps.runner.start_sweep(stage, sweep);
    }
}

/// Months that are there before they are needed.
const MONTHS_AHEAD: i32 = 3;

/// The sweep that makes the month partitions of `sends` and `events` ahead of time.
struct CreatePartitions(PgPool);

#[async_trait]
impl Sweep for CreatePartitions {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("create_partitions", Duration::from_secs(60 * 60)).also_when_paused()
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let made =
            sqlx::query_scalar!(r#"select ensure_partitions($1) as "made!""#, MONTHS_AHEAD).fetch_one(&self.0).await?;
        Ok(u64::try_from(made).unwrap_or(0))
    }
}

/// Writes a decision of the engine about a campaign into the audit log, like those of callers. `detail` has ids, codes and numbers only.
async fn audit_decision(
    db: &mut PgConnection,
    tenant: Uuid,
    action: &str,
    campaign: Uuid,
    detail: Value,
) -> sqlx::Result<()> {
    let record = AuditRecord {
        tenant: Some(tenant),
        actor: "stage:audience",
        action,
        subject: campaign.to_string(),
        detail,
        ..AuditRecord::default()
    };
    audit::write(db, &[record]).await
}
