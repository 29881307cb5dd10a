//! Attribution: credits outcomes to the mails that led to them, by the tenant's model and windows, with evidence.
//!
//! An outcome's row is its work item: `credit_due` says when its credit is to be computed. A new outcome sets it, and so do late
//! clicks, bounces and new contacts (triggers write them to `late_facts`), and a change of the tenant's model. Computing a credit
//! again is harmless: it follows from the current facts, and unchanged credits are not written. So a crash, a lost announcement or
//! a repeated fact costs one computation and never a credit.

mod credit;
mod due;
mod model;
mod recount;
mod stage;
mod sweeps;
mod totals;
mod touches;

pub use ledger::attribution::{CLICK_DAYS_MAX, DELIVERY_DAYS_MAX, Policy};
pub use model::{Credit, CreditRule, MailTouch, WeighedOutcome, credit};
pub use recount::{Difference, recount};
pub use stage::start;

/// Single computations and sweeps, for tests.
#[doc(hidden)]
pub mod testing {
    use runner::{StageError, Sweep};
    use sqlx::PgPool;
    use uuid::Uuid;

    use crate::{credit, sweeps};

    /// Credits outcomes, as their announcement would.
    pub async fn credit_outcomes(pool: &PgPool, outcomes: &[(Uuid, Uuid)]) -> sqlx::Result<()> {
        credit::credit_outcomes(&runtime::plans::PreparedPool::new(pool, 1), outcomes).await.map(drop)
    }

    /// Runs both sweeps until neither finds anything.
    pub async fn run_sweeps(pool: &PgPool) -> Result<(), StageError> {
        let by_key = runtime::plans::PreparedPool::new(pool, 1);
        let (late, due) = (sweeps::LateFacts(by_key.clone()), sweeps::DueOutcomes(by_key));
        while late.sweep().await? + due.sweep().await? > 0 {}
        Ok(())
    }
}
