//! Pauses campaigns above their tripwire's limits, and campaigns whose window closed and whose `on_miss` is `hold`.
//!
//! A pause takes effect at once: the fence reads it. The reason is in `campaigns.pause_reason` and, with its numbers, in the audit log.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use schemas::PauseReason;
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use super::audit_decision;
use ledger::{
    end_stopped::HAS_UNFINISHED_CAMPAIGNS,
    tripwire::{Tally, TripwireLimits, decide},
};

const INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Tripwire(pub(super) PgPool);

/// A campaign to pause, and why.
struct Stop {
    tenant_id: Uuid,
    id: Uuid,
    reason: PauseReason,
    detail: Value,
}

impl Tripwire {
    /// Campaigns above their limits.
    async fn tripped(&self) -> sqlx::Result<Vec<Stop>> {
        let rows = sqlx::query_file!("queries/tripped_campaigns.sql").fetch_all(&self.0).await?;
        let stops = rows.into_iter().filter_map(|row| {
            let tally = Tally { decided: row.decided, bounced: row.bounced, complained: row.complained };
            let limits =
                TripwireLimits { bounce_percent: row.bounce_percent, complaint_percent: row.complaint_percent };
            let detail = json!({"decided": tally.decided, "bounced": tally.bounced, "complained": tally.complained});
            decide(&tally, limits).map(|reason| Stop { tenant_id: row.tenant_id, id: row.id, reason, detail })
        });
        Ok(stops.collect())
    }

    /// Campaigns whose window closed.
    async fn missed(&self) -> sqlx::Result<Vec<Stop>> {
        let rows = sqlx::query!(
            "select tenant_id, id from campaigns
             where status = 'sending' and completed_at is null and not paused and on_miss = 'hold' and closes_at <= now()"
        )
        .fetch_all(&self.0)
        .await?;
        let stop = |tenant_id, id| Stop { tenant_id, id, reason: PauseReason::WindowMissed, detail: json!({}) };
        Ok(rows.into_iter().map(|row| stop(row.tenant_id, row.id)).collect())
    }

    async fn pause(&self, mut stop: Stop) -> Result<bool, StageError> {
        let trips = stop.reason != PauseReason::WindowMissed;
        let mut tx = self.0.begin().await?;
        // Only if nothing has changed: a caller that resumed the campaign has disarmed its tripwire.
        let paused = sqlx::query!(
            "update campaigns
             set paused = true, pause_reason = $3, tripwire = case when $4 then 'tripped' else tripwire end, updated_at = now()
             where tenant_id = $1 and id = $2 and status = 'sending' and completed_at is null and not paused
               and case when $4 then tripwire = 'armed' else closes_at <= now() end",
            stop.tenant_id,
            stop.id,
            stop.reason.as_str(),
            trips,
        )
        .execute(&mut *tx)
        .await?;
        if paused.rows_affected() == 0 {
            return Ok(false);
        }
        stop.detail["reason"] = json!(stop.reason);
        audit_decision(&mut tx, stop.tenant_id, "campaign.paused", stop.id, stop.detail).await?;
        tx.commit().await?;
        tracing::warn!(
            stage = "audience", tenant_id = %stop.tenant_id, campaign_id = %stop.id, reason = stop.reason.as_str(),
            "campaign paused"
        );
        Ok(true)
    }
}

#[async_trait]
impl Sweep for Tripwire {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("tripwire", INTERVAL).when(HAS_UNFINISHED_CAMPAIGNS).also_when_paused()
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut found = 0;
        let (tripped, missed) = (self.tripped().await?, self.missed().await?);
        for stop in tripped.into_iter().chain(missed) {
            found += u64::from(self.pause(stop).await?);
        }
        Ok(found)
    }
}
