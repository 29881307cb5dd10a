//! Pausing stages.

use serde_json::{Value, json};
use sqlx::PgPool;

use super::outcome;
use crate::{
    invocation::{self, AuditEntry},
    operator,
};

/// Pauses stages. A stage that is paused already keeps its operator and reason.
pub(super) async fn pause(pool: &PgPool, stages: &[&str], reason: Option<&str>) -> anyhow::Result<()> {
    let mut tx = pool.begin().await?;
    for stage in stages {
        let paused = sqlx::query!(
            "insert into stage_pauses (stage, actor, reason) values ($1, $2, $3) on conflict do nothing",
            stage,
            invocation::actor(),
            reason,
        )
        .execute(&mut *tx)
        .await?
        .rows_affected();
        let outcome = Some(outcome(paused == 0, true));
        AuditEntry { action: "stage.pause", subject: stage, reason, outcome, ..AuditEntry::default() }
            .audit(&mut tx)
            .await?;
    }
    tx.commit().await?;
    Ok(())
}

/// Resumes stages. With `all`, only paused stages are audited.
pub(super) async fn resume(pool: &PgPool, stages: &[&str], all: bool, reason: Option<&str>) -> anyhow::Result<()> {
    let mut tx = pool.begin().await?;
    for stage in stages {
        let resumed =
            sqlx::query!("delete from stage_pauses where stage = $1", stage).execute(&mut *tx).await?.rows_affected();
        if all && resumed == 0 {
            continue;
        }
        let outcome = Some(outcome(resumed == 1, false));
        AuditEntry { action: "stage.resume", subject: stage, reason, outcome, ..AuditEntry::default() }
            .audit(&mut tx)
            .await?;
    }
    tx.commit().await?;
    Ok(())
}

/// Prints the switches of these stages.
pub(super) async fn list(pool: &PgPool, stages: &[&str]) -> anyhow::Result<()> {
    let asked: Vec<String> = stages.iter().map(|stage| (*stage).to_owned()).collect();
    let rows = sqlx::query!(
        r#"select w.stage as "stage!", p.paused_at as "since?", p.actor as "actor?", p.reason as "reason?",
                  l.held_at is not null as "is_held!"
           from unnest($1::text[]) with ordinality as w (stage, place)
           cross join ledger l
           left join stage_pauses p on p.stage = w.stage
           order by w.place"#,
        &asked,
    )
    .fetch_all(pool)
    .await?;
    let held = |row_held: bool, stage: &str| row_held && runtime::pause_switches::OUTBOUND.contains(&stage);
    let records: Vec<Value> = rows
        .into_iter()
        .map(|row| {
            let is_held = held(row.is_held, &row.stage);
            json!({"stage": row.stage, "paused": row.since.is_some(), "held": is_held, "since": row.since, "by": row.actor,
                   "reason": row.reason})
        })
        .collect();
    operator::print(&records, &["stage", "paused", "held", "since", "by", "reason"]);
    Ok(())
}
