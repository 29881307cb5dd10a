//! Soft bounces: a mailbox that fails repeatedly gets no marketing mail for a while.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use schemas::action::SuppressionScope;
use sqlx::PgPool;
use uuid::Uuid;

use crate::{
    people,
    suppressions::{self, NewSuppression, SuppressionReason},
};

/// When a mailbox is suppressed, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct SoftBounceLimits {
    /// Number of soft bounces; 0: never.
    pub count: u32,
    /// The time within which they count.
    pub window: Duration,
    /// How long the mailbox gets no marketing mail.
    pub pause: Duration,
}

/// Contacts checked in one transaction.
const AT_ONCE: i64 = 500;

/// Checks the mailboxes with new soft bounces. Any number of processes may run it: each takes other rows.
pub struct SoftBounces {
    /// In the stages' role.
    pub pool: PgPool,
    /// From the settings.
    pub limits: SoftBounceLimits,
}

#[async_trait]
impl Sweep for SoftBounces {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("suppress_soft_bounces", Duration::from_secs(20))
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let window = self.limits.window.as_secs_f64();
        let mut tx = self.pool.begin().await?;
        let contacts_taken =
            sqlx::query_file!("queries/suppressions/take_soft_bounces.sql", AT_ONCE).fetch_all(&mut *tx).await?;
        let checked = contacts_taken.len();
        if checked > 0 && self.limits.count > 0 {
            let taken: Vec<(Uuid, Uuid)> =
                contacts_taken.into_iter().map(|row| (row.tenant_id, row.contact_id)).collect();
            // Every writer of suppressions locks the contacts first, and reads about them in a later statement.
            people::lock_people(&mut tx, &taken).await?;
            let (tenants, contacts): (Vec<Uuid>, Vec<Uuid>) = taken.into_iter().unzip();
            let failing = sqlx::query_file!(
                "queries/suppressions/soft_bounced.sql",
                &tenants,
                &contacts,
                i64::from(self.limits.count),
                window,
                self.limits.pause.as_secs_f64(),
            )
            .fetch_all(&mut *tx)
            .await?;
            let new = failing.into_iter().map(|row| NewSuppression {
                scope: SuppressionScope::Marketing,
                note: Some(format!("mailbox failed {} times", row.times)),
                expires_at: Some(row.until),
                ..NewSuppression::new(row.tenant_id, row.address, SuppressionReason::Invalid, "engagement")
                    .because_of(row.send_id)
            });
            suppressions::suppress(&mut tx, new.collect()).await?;
        }
        tx.commit().await?;
        sqlx::query!(
            "delete from soft_bounces where ctid = any(array(
                 select ctid from soft_bounces where occurred_at < now() - make_interval(secs => $1) and checked
                 order by occurred_at limit $2))",
            window,
            10 * AT_ONCE
        )
        .execute(&self.pool)
        .await?;
        Ok(checked as u64)
    }
}
