//! Attribution: outcomes are credited to the mails that led to them, under a stated model and window, with evidence.
//!
//! An outcome's row is its work item: `credit_due` says when it is to be looked at. Whoever tells of one sets it; so do late clicks
//! and bounces, new contacts (which triggers note in `late_facts`), and a change of the tenant's model. Looking again is harmless:
//! the credit follows from the facts as they stand, and what does not change is not written. So a crash, a lost announcement or a
//! fact told twice costs a look, never a credit.

mod credit;
mod model;
mod policy;
mod recount;
mod stage;
mod sweeps;
mod totals;
mod touches;

pub use model::{Credit, Rule, Touch, Weighed, credit};
pub use policy::{CLICK_DAYS_MAX, DELIVERY_DAYS_MAX, Policy};
pub use recount::{Difference, recount};
pub use stage::start;

/// Settings of the attribution stage.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct Settings {
    /// Groups of outcomes and late facts worked on at the same time.
    #[arg(long, env = "POSTRIDER_ATTRIBUTION_WORKERS", default_value_t = 2)]
    pub attribution_workers: usize,
}

/// Single looks and sweeps, for tests that want them at their own time.
#[doc(hidden)]
pub mod testing {
    use runner::{StageError, Sweep};
    use sqlx::PgPool;
    use uuid::Uuid;

    use crate::{credit, sweeps};

    /// Looks at outcomes, as their announcement would.
    ///
    /// # Errors
    /// When Postgres is away.
    pub async fn look_at(pool: &PgPool, outcomes: &[(Uuid, Uuid)]) -> sqlx::Result<()> {
        credit::look_at(&runtime::plans::PreparedPool::new(pool, 1), outcomes).await.map(drop)
    }

    /// Both sweeps, until neither finds anything.
    ///
    /// # Errors
    /// When Postgres is away.
    pub async fn settle(pool: &PgPool) -> Result<(), StageError> {
        let by_key = runtime::plans::PreparedPool::new(pool, 1);
        let (late, due) = (sweeps::LateFacts(by_key.clone()), sweeps::DueOutcomes(by_key));
        while late.sweep().await? + due.sweep().await? > 0 {}
        Ok(())
    }
}
