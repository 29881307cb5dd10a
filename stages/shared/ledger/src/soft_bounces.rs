//! Soft bounces: a mailbox that fails repeatedly gets no marketing mail for a while.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use runtime::{column, db::BEGIN_BRIEFLY};
use schemas::action::SuppressionScope;
use sqlx::{PgConnection, PgPool};
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
        let mut tx = self.pool.begin_with(BEGIN_BRIEFLY).await?;
        let contacts_taken =
            sqlx::query_file!("queries/suppressions/take_soft_bounces.sql", AT_ONCE).fetch_all(&mut *tx).await?;
        let mut checked = contacts_taken.len();
        if checked > 0 && self.limits.count > 0 {
            let failing = sqlx::query_file_as!(
                FailingMailbox,
                "queries/suppressions/soft_bounced.sql",
                &column(&contacts_taken, |row| row.tenant_id),
                &column(&contacts_taken, |row| row.contact_id),
                i64::from(self.limits.count),
                window,
            )
            .fetch_all(&mut *tx)
            .await?;
            checked -= self.suppress(&mut tx, failing).await?;
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

/// A contact whose mailbox failed as often as allowed.
struct FailingMailbox {
    tenant_id: Uuid,
    contact_id: Uuid,
    send_id: Uuid,
    times: i64,
}

impl SoftBounces {
    /// Suppresses these mailboxes. Answers how many are left for the next run: another transaction has locked their contacts, an import for
    /// seconds, and the mail and opt-outs of the others do not wait for it.
    async fn suppress(&self, db: &mut PgConnection, failing: Vec<FailingMailbox>) -> sqlx::Result<usize> {
        if failing.is_empty() {
            return Ok(0);
        }
        let (tenants, contacts) =
            (column(&failing, |mailbox| mailbox.tenant_id), column(&failing, |mailbox| mailbox.contact_id));
        // Every writer of suppressions locks the contacts first, and reads about them in a later statement.
        let locked = people::try_lock_contacts(&mut *db, &tenants, &contacts).await?;
        let (failing, left): (Vec<FailingMailbox>, Vec<FailingMailbox>) =
            failing.into_iter().partition(|mailbox| locked.contains(&mailbox.contact_id));
        let rows = sqlx::query_file!(
            "queries/suppressions/soft_suppressible.sql",
            &column(&failing, |mailbox| mailbox.tenant_id),
            &column(&failing, |mailbox| mailbox.contact_id),
            &column(&failing, |mailbox| mailbox.send_id),
            &column(&failing, |mailbox| mailbox.times),
            self.limits.pause.as_secs_f64(),
        )
        .fetch_all(&mut *db)
        .await?;
        let new = rows.into_iter().map(|row| NewSuppression {
            scope: SuppressionScope::Marketing,
            note: Some(format!("mailbox failed {} times", row.times)),
            expires_at: Some(row.until),
            ..NewSuppression::new(row.tenant_id, row.address, SuppressionReason::Invalid, "engagement")
                .because_of(row.send_id)
        });
        suppressions::suppress(&mut *db, new.collect()).await?;
        if !left.is_empty() {
            sqlx::query!(
                "update soft_bounces b set checked = false
                 from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as w (tenant_id, contact_id, send_id)
                 where b.tenant_id = w.tenant_id and b.contact_id = w.contact_id and b.send_id = w.send_id",
                &column(&left, |mailbox| mailbox.tenant_id),
                &column(&left, |mailbox| mailbox.contact_id),
                &column(&left, |mailbox| mailbox.send_id),
            )
            .execute(&mut *db)
            .await?;
        }
        Ok(left.len())
    }
}
