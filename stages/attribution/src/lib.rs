//! Attribution: credits outcomes to the mails that led to them, by the tenant's model and windows, with evidence.
//!
//! An outcome's row is its work item: `credit_due` says when its credit is to be computed. A new outcome sets it, and so do late
//! clicks, bounces and new contacts (triggers write them to `late_facts`), and a change of the tenant's model. Computing a credit
//! again is harmless: it follows from the current facts, and unchanged credits are not written. So a crash, a lost announcement or
//! a repeated fact costs one computation and never a credit.

mod credit;
mod model;
mod recount;
mod totals;
mod touches;

pub use recount::{Difference, recount};

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use runner::{Deps, Intake, Stage, StageError, Sweep, SweepSchedule};
use runtime::{Publication, plans::PreparedPool};
use schemas::{Lane, RequestAnnounced, RequestKind, subjects};
use uuid::Uuid;

/// The most announcements that are handled together.
const COALESCE: usize = 200;
/// Groups of outcomes that are credited at the same time.
const WORKERS: usize = 2;

struct Attribution(PreparedPool);

/// Starts the stage: its workers and its sweeps.
pub fn start(deps: &Deps) {
    let intake = Intake {
        lane: Lane::Priority,
        stream: subjects::stream::ACCEPTED,
        durable: format!("{}-{}", Attribution::NAME, Lane::Priority),
        subjects: vec![format!("mail.v1.accepted.*.*.{}", RequestKind::Outcome)],
        workers: WORKERS,
        coalesce: COALESCE,
    };
    let by_key = deps.by_key.bulk(Attribution::NAME);
    deps.runner.start(Arc::new(Attribution(by_key.clone())), vec![intake]);
    deps.runner.start_sweep(Attribution::NAME, Arc::new(LateFacts(by_key.clone())));
    deps.runner.start_sweep(Attribution::NAME, Arc::new(DueOutcomes(by_key)));
}

#[async_trait]
impl Stage for Attribution {
    const NAME: &'static str = "attribution";
    const SPAN: &'static str = "attribution credit";
    /// The request of an announcement is the outcome itself: its row is written before it is announced.
    type Input = RequestAnnounced;

    async fn handle(&self, inputs: &[RequestAnnounced]) -> Result<Vec<Publication>, StageError> {
        let outcomes: Vec<(Uuid, Uuid)> = inputs.iter().map(|input| (input.tenant_id, input.request_id)).collect();
        credit::credit_outcomes(&self.0, &outcomes).await?.count();
        Ok(Vec::new())
    }
}

/// The most notes of late facts that are taken in one transaction …
const NOTES_MAX: i64 = 200;
/// … and about how many sends and contacts these name: a note of an import has a thousand.
const NOTED_IDS_MAX: i64 = 50_000;

/// The sweep for late clicks, bounces and contacts: makes the outcomes due that they may affect.
struct LateFacts(PreparedPool);

#[async_trait]
impl Sweep for LateFacts {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("late_facts", Duration::from_secs(1)).when("exists (select from late_facts)")
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut tx = self.0.begin().await?;
        let taken = sqlx::query_file_scalar!("queries/late_facts.sql", NOTES_MAX, NOTED_IDS_MAX);
        let taken = taken.fetch_one(&mut *tx).await?;
        tx.commit().await?;
        Ok(u64::try_from(taken).unwrap_or(0))
    }
}

/// The sweep for due outcomes: not announced, affected by late facts, or due for a recheck. What is due now comes before outcomes that a
/// change of the model makes due.
struct DueOutcomes(PreparedPool);

#[async_trait]
impl Sweep for DueOutcomes {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("due_outcomes", Duration::from_secs(1)).when(
            "exists (select from outcomes where credit_due <= now())
                   or exists (select from attribution_settings where restate_after is not null)",
        )
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let counts = credit::credit_due_outcomes(&self.0).await?;
        counts.count();
        if counts.outcomes == credit::OUTCOMES_MAX.unsigned_abs() {
            return Ok(counts.outcomes);
        }
        let mut tx = self.0.begin().await?;
        let restated =
            sqlx::query_file_scalar!("queries/restate.sql", credit::OUTCOMES_MAX).fetch_one(&mut *tx).await?;
        tx.commit().await?;
        Ok(counts.outcomes + u64::try_from(restated).unwrap_or(0))
    }
}

/// Single computations and sweeps, for tests.
#[doc(hidden)]
pub mod testing {
    use runner::{StageError, Sweep};
    use sqlx::PgPool;
    use uuid::Uuid;

    use crate::{DueOutcomes, LateFacts, credit};

    /// Credits outcomes, as their announcement would.
    pub async fn credit_outcomes(pool: &PgPool, outcomes: &[(Uuid, Uuid)]) -> sqlx::Result<()> {
        credit::credit_outcomes(&runtime::plans::PreparedPool::new(pool, 1), outcomes).await.map(drop)
    }

    /// Runs both sweeps until neither finds anything.
    pub async fn run_sweeps(pool: &PgPool) -> Result<(), StageError> {
        let by_key = runtime::plans::PreparedPool::new(pool, 1);
        let (late, due) = (LateFacts(by_key.clone()), DueOutcomes(by_key));
        while late.sweep().await? + due.sweep().await? > 0 {}
        Ok(())
    }
}
