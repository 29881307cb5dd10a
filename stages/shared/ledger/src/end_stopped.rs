//! Ends the open sends of a campaign that was cancelled, or whose window closed and that must not be mailed late. What is fenced
//! is left to the worker that sends it.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use runtime::{Counter, column};
use schemas::{MessageKind, SendState, SkipReason};
use sqlx::PgPool;

use crate::endings::{Ending, end_sends};

/// SQL that is true while a campaign is under way, or cancelled with sends that are still open. The sweeps over such campaigns wait for it.
pub const HAS_UNFINISHED_CAMPAIGNS: &str =
    "exists (select from campaigns where status in ('sending', 'cancelled') and completed_at is null)";

const INTERVAL: Duration = Duration::from_millis(500);
/// Batches looked at per transaction: those of a slow campaign are small.
const AT_ONCE: i64 = 500;
/// Sends per transaction, in whole batches: some tens of milliseconds.
const SENDS_AT_ONCE: i64 = 10_000;
/// The reason of sends whose campaign was cancelled.
const CANCELLED: &str = "campaign_cancelled";

/// Ends the open sends of stopped campaigns.
pub struct EndStopped(pub PgPool);

#[async_trait]
impl Sweep for EndStopped {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("end_stopped_campaigns", INTERVAL).when(HAS_UNFINISHED_CAMPAIGNS).also_when_paused()
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut tx = self.0.begin().await?;
        let batches = sqlx::query!(
            r#"with open as materialized (
                   select b.tenant_id, b.id, c.status = 'sending' as missed, b.queued + b.deferred as sends
                   from campaigns c
                   join batches b on b.tenant_id = c.tenant_id and b.campaign_id = c.id
                   where (c.status = 'cancelled' or c.status = 'sending' and c.on_miss = 'skip' and c.closes_at <= now())
                     and c.completed_at is null and b.state <> 'done' and b.queued + b.deferred > 0
                   order by b.tenant_id, b.id
                   limit $1
               ), first as materialized (
                   select *, sum(sends) over (order by tenant_id, id) - sends as before from open
               )
               select b.tenant_id, b.id, b.kind as "kind: MessageKind", o.missed as "missed!"
               from first o
               join batches b on b.tenant_id = o.tenant_id and b.id = o.id
               where o.before < $2 and b.queued + b.deferred > 0
               order by b.tenant_id, b.id
               for update of b skip locked"#,
            AT_ONCE,
            SENDS_AT_ONCE,
        )
        .fetch_all(&mut *tx)
        .await?;
        if batches.is_empty() {
            return Ok(0);
        }
        let endings = column(&batches, |batch| Ending {
            batch: (batch.tenant_id, batch.id),
            kind: batch.kind,
            send: None,
            to: if batch.missed { SendState::Skipped } else { SendState::Cancelled },
            reason: if batch.missed { SkipReason::WindowMissed.as_str() } else { CANCELLED },
            code: None,
        });
        let ended = end_sends(&mut tx, &endings).await?;
        tx.commit().await?;
        for stopped in ended {
            Counter::SendsTotal.add(stopped.sends, [("lane", "bulk"), ("state", stopped.to.as_str())]);
            if stopped.to == SendState::Skipped {
                let reason = stopped.ending.reason;
                Counter::SendsWithheldTotal.add(stopped.sends, [("stage", "audience"), ("reason", reason)]);
            }
        }
        Ok(batches.len() as u64)
    }
}
