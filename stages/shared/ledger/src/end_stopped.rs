//! Ends the open sends of a campaign that was cancelled, or whose window closed and that must not be mailed late, and of months that
//! are to be dropped. What is fenced is left to the worker that sends it.

use std::time::Duration;

use async_trait::async_trait;
use chrono::NaiveDate;
use runner::{StageError, Sweep, SweepSchedule};
use runtime::{AuditRecord, Counter, audit, column};
use schemas::{Lane, MessageKind, SendState, SkipReason, ids::BATCH_MAX};
use serde_json::json;
use sqlx::PgPool;

use crate::{
    endings::{Ending, end_sends},
    owed::EXPIRED,
};

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
        // By the range of the campaign's ids in `batches_open`, state by state: what is done, or for a later transaction, is not read.
        let batches = sqlx::query!(
            r#"with open as materialized (
                   select b.tenant_id, b.id, c.status = 'sending' as missed, b.sends
                   from campaigns c
                   cross join unnest(array['held', 'timed', 'waiting', 'announced', 'resting']) as s (state)
                   cross join lateral (
                       select b.tenant_id, b.id, b.queued + b.deferred as sends
                       from batches b
                       where b.lane = 'bulk' and b.state = s.state and b.state <> 'done' and b.tenant_id = c.tenant_id
                         and b.id between first_id_of_launch(c.launch_prefix) and last_id_of_launch(c.launch_prefix)
                         and b.queued + b.deferred > 0
                       order by b.id
                       limit $1
                   ) b
                   where (c.status = 'cancelled' or c.status = 'sending' and c.on_miss = 'skip' and c.closes_at <= now())
                     and c.completed_at is null
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
        let endings = column(&batches, |batch| {
            let (to, reason) = match batch.missed {
                true => (SendState::Skipped, SkipReason::WindowMissed.as_str()),
                false => (SendState::Cancelled, CANCELLED),
            };
            Ending::new(((batch.tenant_id, batch.id), batch.kind), None, to, reason)
        });
        let ended = end_sends(&mut tx, &endings).await?;
        tx.commit().await?;
        for stopped in &ended {
            Counter::SendsTotal.add(stopped.sends, [("lane", "bulk"), ("state", stopped.to.as_str())]);
            if stopped.to == SendState::Skipped {
                let reason = stopped.ending.reason;
                Counter::SendsWithheldTotal.add(stopped.sends, [("stage", "audience"), ("reason", reason)]);
            }
        }
        Ok(ended.iter().map(|stopped| stopped.sends).sum())
    }
}

/// Ends what keeps a month from being dropped that ended before this day, such as a campaign that was paused and never resumed: cancels
/// campaigns, whose sends [`EndStopped`] ends, and lets open sends of no campaign expire. Answers how many campaigns and batches that
/// was.
pub async fn end_old_months(pool: &PgPool, before: NaiveDate) -> sqlx::Result<u64> {
    let mut ended = 0;
    while cancel_old_campaign(pool, before).await? {
        ended += 1;
    }
    for lane in [Lane::Priority, Lane::Bulk] {
        loop {
            match expire_old_batches(pool, before, lane).await? {
                0 => break,
                batches => ended += batches,
            }
        }
    }
    Ok(ended)
}

/// One in a transaction: a campaign that is cancelled closes the gate of its tenant.
async fn cancel_old_campaign(pool: &PgPool, before: NaiveDate) -> sqlx::Result<bool> {
    let mut tx = pool.begin().await?;
    let campaign = sqlx::query!(
        "update campaigns c set status = 'cancelled', updated_at = now()
         from (
             select tenant_id, id from campaigns
             where status = 'sending' and completed_at is null and (month + interval '1 month')::date <= $1
             limit 1 for update skip locked
         ) o
         where c.tenant_id = o.tenant_id and c.id = o.id
         returning c.tenant_id, c.id",
        before
    )
    .fetch_optional(&mut *tx)
    .await?;
    let Some(campaign) = campaign else { return Ok(false) };
    let record = AuditRecord {
        tenant: Some(campaign.tenant_id),
        actor: "stage:audience",
        action: "campaign.cancel",
        subject: campaign.id.to_string(),
        detail: json!({"reason": "older_than_the_ledger"}),
        ..AuditRecord::default()
    };
    audit::write(&mut *tx, &[record]).await?;
    tx.commit().await?;
    tracing::warn!(
        stage = "audience", tenant_id = %campaign.tenant_id, campaign_id = %campaign.id,
        "campaign cancelled: its month is older than the ledger is kept"
    );
    Ok(true)
}

/// Some in a transaction. Looks at the open batches only if there is a month to drop.
async fn expire_old_batches(pool: &PgPool, before: NaiveDate, lane: Lane) -> sqlx::Result<u64> {
    let mut tx = pool.begin().await?;
    let batches = sqlx::query!(
        r#"select b.tenant_id, b.id, b.kind as "kind: MessageKind"
           from batches b
           where (select (oldest_ledger_month() + interval '1 month')::date) <= $1 and (b.month + interval '1 month')::date <= $1
             and b.lane = $2 and b.state <> 'done' and b.campaign_id is null and b.queued + b.deferred > 0
           order by b.tenant_id, b.id
           limit $3
           for update of b skip locked"#,
        before,
        lane.as_str(),
        SENDS_AT_ONCE / BATCH_MAX as i64,
    )
    .fetch_all(&mut *tx)
    .await?;
    if batches.is_empty() {
        return Ok(0);
    }
    let endings = column(&batches, |batch| {
        Ending::new(((batch.tenant_id, batch.id), batch.kind), None, SendState::Expired, EXPIRED)
    });
    let ended = end_sends(&mut tx, &endings).await?;
    tx.commit().await?;
    for expired in &ended {
        Counter::SendsTotal.add(expired.sends, [("lane", lane.as_str()), ("state", expired.to.as_str())]);
    }
    Ok(ended.len() as u64)
}
