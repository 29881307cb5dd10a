//! Decides A/B tests: when the test's mail has been out for long enough, the remainder, which waited in `held` batches, gets the winner's
//! content.
//!
//! The clock starts when the test's mail is out: no batch of it waits or is announced, and none of it is put off by a rule of ours, such as
//! quiet hours. Mail that a receiver defers or slows down does not delay it, nor does a batch that is set aside for a day.

use std::time::Duration;

use async_trait::async_trait;
use ledger::gate::Hold;
use runner::{StageError, Sweep, SweepSchedule};
use schemas::WinnerMetric;
use serde_json::json;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::audit_decision;
use ledger::variants::{self, VariantResult};

const INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct DecideTests(pub(super) PgPool);

/// A test whose time has come.
struct Due {
    tenant_id: Uuid,
    id: Uuid,
    metric: WinnerMetric,
}

impl DecideTests {
    /// Decides one test; `false` when none is due.
    async fn decide_one(&self) -> Result<bool, StageError> {
        let mut tx = self.0.begin().await?;
        let Some(due) = lock_due(&mut tx).await? else { return Ok(false) };
        let (names, results) = results(&mut tx, &due).await?;
        let (winner, reason) = variants::decide(&results, due.metric);
        let Some(variant) = names.get(winner) else { return Ok(false) };
        sqlx::query!(
            "update campaigns set winner = $3, winner_reason = $4, decided_at = now(), updated_at = now()
             where tenant_id = $1 and id = $2",
            due.tenant_id,
            due.id,
            variant,
            reason.as_str(),
        )
        .execute(&mut *tx)
        .await?;
        let released = variants::release_remainder(&mut tx, due.tenant_id, due.id, variant).await?;
        let detail = json!({"winner": variant, "reason": reason, "batches": released});
        audit_decision(&mut tx, due.tenant_id, "campaign.winner", due.id, detail).await?;
        tx.commit().await?;
        tracing::info!(
            stage = "audience", tenant_id = %due.tenant_id, campaign_id = %due.id, winner = variant, reason = reason.as_str(),
            batches = released, "A/B test decided"
        );
        Ok(true)
    }
}

/// Notes the tests whose mail is out. The sends are read of tests only of which no batch waits or is announced. Served by
/// `campaigns_undecided` and `batches_by_campaign`.
async fn note_tested(pool: &PgPool) -> sqlx::Result<u64> {
    let noted = sqlx::query!(
        "update campaigns c set tested_at = now()
         where c.test_percent is not null and c.decided_at is null and c.materialized_at is not null
           and c.tested_at is null and c.status in ('sending', 'sent')
           and not case when exists (
                   select from batches b
                   where b.tenant_id = c.tenant_id and b.campaign_id = c.id and b.variant is not null
                     and b.state <> 'held' and b.queued + b.fenced > 0 and not is_set_aside(b.announce_after, b.quiet_at))
               then true
               else exists (
                   select from batches b
                   where b.tenant_id = c.tenant_id and b.campaign_id = c.id and b.variant is not null and b.deferred > 0
                     and not is_set_aside(b.announce_after, b.quiet_at)
                     and exists (
                         select from sends s
                         where s.tenant_id = b.tenant_id and s.month = b.month
                           and s.id between b.id and last_id_of(b.id)
                           and s.state = 'deferred' and s.reason = any($1)))
               end",
        &Hold::REASONS as &[&str]
    )
    .execute(pool)
    .await?;
    Ok(noted.rows_affected())
}

/// A test none of whose mail was sent, or may be yet, has no results to wait for.
async fn lock_due(db: &mut PgConnection) -> sqlx::Result<Option<Due>> {
    sqlx::query_as!(
        Due,
        r#"select c.tenant_id, c.id, c.winner_metric as "metric!: WinnerMetric"
           from campaigns c
           where c.test_percent is not null and c.decided_at is null and c.materialized_at is not null
             and c.status in ('sending', 'sent') and c.tested_at is not null
             and (c.tested_at + make_interval(mins => c.decide_after_minutes) <= now()
                  or not exists (
                      select from batches b
                      where b.tenant_id = c.tenant_id and b.campaign_id = c.id and b.variant is not null
                        and (b.sent + b.deferred + b.unknown > 0 or is_set_aside(b.announce_after, b.quiet_at))))
           order by c.tested_at
           limit 1
           for no key update of c skip locked"#
    )
    .fetch_optional(db)
    .await
}

/// The variants and their results, in the caller's order.
async fn results(db: &mut PgConnection, due: &Due) -> sqlx::Result<(Vec<String>, Vec<VariantResult>)> {
    let rows = sqlx::query!(
        r#"select v.variant, coalesce(sum(b.sent), 0) as "sent!", coalesce(sum(b.opened_human), 0) as "opened_human!",
                  coalesce(sum(b.clicked_human), 0) as "clicked_human!"
           from campaign_variants v
           left join batches b on b.tenant_id = v.tenant_id and b.campaign_id = v.campaign_id and b.variant = v.variant
           where v.tenant_id = $1 and v.campaign_id = $2
           group by v.variant
           order by v.variant"#,
        due.tenant_id,
        due.id,
    )
    .fetch_all(db)
    .await?;
    let result = rows.into_iter().map(|row| {
        let result = VariantResult { sent: row.sent, opened_human: row.opened_human, clicked_human: row.clicked_human };
        (row.variant, result)
    });
    Ok(result.unzip())
}

#[async_trait]
impl Sweep for DecideTests {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("decide_tests", INTERVAL).when("exists (select from campaigns where test_percent is not null and decided_at is null and materialized_at is not null)")
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut found = note_tested(&self.0).await?;
        while self.decide_one().await? {
            found += 1;
        }
        Ok(found)
    }
}
