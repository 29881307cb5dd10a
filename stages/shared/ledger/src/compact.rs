//! Compacts the tables that analytics read: folds logs into totals, and merges the shards of past hours.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use sqlx::PgPool;

/// Rows of a log folded at a time; a sweep that found so many runs again at once.
const AT_ONCE: i64 = 5_000;

/// Folds the logs of suppressions, contents and members. Several processes may run it: each takes rows that no other has locked.
pub struct FoldLogs(pub PgPool);

#[async_trait]
impl Sweep for FoldLogs {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("fold_logs", Duration::from_secs(10))
            .when(
                "exists (select from suppression_changes) or exists (select from content_changes)
                 or exists (select from audience_member_changes)",
            )
            .also_when_paused()
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let suppressions =
            sqlx::query_file_scalar!("queries/compact/compact_suppressions.sql", AT_ONCE).fetch_one(&self.0).await?;
        let contents =
            sqlx::query_file_scalar!("queries/compact/compact_contents.sql", AT_ONCE).fetch_one(&self.0).await?;
        let members =
            sqlx::query_file_scalar!("queries/compact/compact_members.sql", AT_ONCE).fetch_one(&self.0).await?;
        // Below the limit everything is folded, and the next run may wait.
        let full = suppressions.max(contents).max(members) >= AT_ONCE;
        Ok(if full { u64::try_from(suppressions + contents + members).unwrap_or(0) } else { 0 })
    }
}

/// Merges the shards of past hours.
pub struct MergeHours(pub PgPool);

#[async_trait]
impl Sweep for MergeHours {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("merge_hours", Duration::from_secs(300)).also_when_paused()
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let saved = sqlx::query_file_scalar!("queries/compact/compact_hours.sql", AT_ONCE).fetch_one(&self.0).await?;
        Ok(u64::try_from(saved).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use runner::Sweep;
    use serde_json::Value;
    use stage_rig::{Rig, rows_in_vain};

    use super::MergeHours;

    #[tokio::test]
    async fn shards_of_past_hours_are_merged_without_reading_the_others() {
        let rig = Rig::new().await;
        let tenant = rig.tenant().await;
        // Totals of yesterday that are merged, older ones that are not, and those of this hour, to which writers add.
        for sql in [
            "insert into rollups (tenant_id, hour, kind, event, shard, count)
             select $1, date_trunc('hour', now()) - interval '1 day', 'campaign', n::text, 0, 1 from generate_series(1, 5000) n",
            "insert into rollups (tenant_id, hour, kind, event, shard, count)
             select $1, date_trunc('hour', now()) - interval '9 days', 'campaign', 'clicked', n, n from generate_series(0, 3) n",
            "insert into rollups (tenant_id, hour, kind, event, shard, count)
             select $1, date_trunc('hour', now()), 'campaign', 'clicked', n, n from generate_series(0, 3) n",
        ] {
            sqlx::query(sql).bind(tenant.id).execute(&rig.pool).await.unwrap();
        }
        let mut tx = rig.pool.begin().await.unwrap();
        let statement = include_str!("../queries/compact/compact_hours.sql").replace("$1", "5000");
        let plan: Value =
            sqlx::query_scalar(sqlx::AssertSqlSafe(format!("explain (analyze, format json)\n{statement}")))
                .fetch_one(&mut *tx)
                .await
                .unwrap();
        tx.rollback().await.unwrap();
        let in_vain = rows_in_vain(&plan);
        assert!(in_vain < 100.0, "{in_vain} rows were looked at in vain: {plan:#}");
        assert_eq!(MergeHours(rig.pool.clone()).sweep().await.unwrap(), 3);
        assert_eq!(MergeHours(rig.pool.clone()).sweep().await.unwrap(), 0);
        let merged = "select sum(count)::bigint from rollups where hour < now() - interval '8 days' and shard = 0";
        assert_eq!(rig.number(merged).await, 6);
        let open = "select count(*) from rollups where hour > now() - interval '2 hours'";
        assert_eq!(rig.number(open).await, 4);
    }
}
