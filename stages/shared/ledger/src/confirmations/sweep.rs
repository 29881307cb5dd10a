//! The sweep that mails contacts who are to confirm their consent, reminds them, and ends what has expired.

use std::time::Duration;

use async_trait::async_trait;
use runner::{PauseGate, StageError, Sweep, SweepSchedule};
use sqlx::PgPool;
use uuid::Uuid;

use super::{ConfirmationSettings, mail};

const INTERVAL: Duration = Duration::from_secs(1);
/// Confirmations looked at in one transaction.
const AT_ONCE: i64 = 500;

/// The sweep. One process runs it at a time, so that a tenant's mails of an hour are counted exactly.
pub struct SendConfirmations {
    pool: PgPool,
    pause_gate: PauseGate,
    settings: ConfirmationSettings,
}

impl SendConfirmations {
    /// With these limits. While the ledger is held, nobody is asked: the mail would have a new id, and may have been sent before a restore.
    #[must_use]
    pub fn new(pool: PgPool, pause_gate: PauseGate, settings: ConfirmationSettings) -> Self {
        Self { pool, pause_gate, settings }
    }
}

#[async_trait]
impl Sweep for SendConfirmations {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("send_confirmations", INTERVAL)
            .when("exists (select from confirmations where due_at <= now())")
    }

    /// Mails and their marks commit together: of a process that dies between them neither is left.
    async fn sweep(&self) -> Result<u64, StageError> {
        if self.pause_gate.is_ledger_held() {
            return Ok(0);
        }
        let settings = &self.settings;
        let mut tx = self.pool.begin().await?;
        let alone = sqlx::query_scalar!(
            r#"select pg_try_advisory_xact_lock(hashtext('postrider send_confirmations')) as "alone!""#
        );
        if !alone.fetch_one(&mut *tx).await? {
            return Ok(0);
        }
        // The sign-ups of all tenants, and then what imports asked for.
        let (mut tenants, mut contacts) = (Vec::<Uuid>::new(), Vec::<Uuid>::new());
        for is_bulk in [false, true] {
            let (rate, left) = (settings.confirmation_rate_per_hour, AT_ONCE - tenants.len() as i64);
            let taken = sqlx::query_file!("queries/confirmations/take.sql", rate, left, is_bulk);
            for row in taken.fetch_all(&mut *tx).await? {
                tenants.push(row.tenant_id);
                contacts.push(row.contact_id);
            }
        }
        if tenants.is_empty() {
            // Awaited: a dropped transaction keeps the lock until its connection is cleaned, and the next sweep would find nothing.
            tx.rollback().await?;
            return Ok(0);
        }
        let sends: Vec<Uuid> = tenants.iter().map(|_| schemas::new_batch_id()).collect();
        let own = mail::columns();
        // In a statement of its own: its snapshot is taken under the locks.
        let mailed = sqlx::query_file_scalar!(
            "queries/confirmations/mail.sql",
            &tenants,
            &contacts,
            &sends,
            &own.languages,
            &own.subjects,
            &own.html,
            &own.texts,
            settings.confirmation_reminders,
            settings.confirmation_reminder_hours,
            settings.confirmation_days,
            settings.confirmation_gap_hours,
            settings.confirmation_mails_max,
        )
        .fetch_one(&mut *tx)
        .await?;
        tx.commit().await?;
        tracing::debug!(looked_at = tenants.len(), mailed, "confirmations");
        Ok(tenants.len() as u64)
    }
}
