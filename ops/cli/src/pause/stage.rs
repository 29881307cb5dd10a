//! Pausing stages.

use sqlx::PgConnection;

use super::outcome;
use crate::{
    invocation::{self, AuditEntry},
    operator::{CommandOutput, list_records},
};

/// Pauses stages. A stage that is paused already keeps its operator and reason.
pub(super) async fn pause(db: &mut PgConnection, stages: &[&str]) -> anyhow::Result<CommandOutput> {
    for stage in stages {
        let paused = sqlx::query!(
            "insert into stage_pauses (stage, actor, reason) values ($1, $2, $3) on conflict do nothing",
            stage,
            invocation::actor(),
            invocation::reason(),
        )
        .execute(&mut *db)
        .await?
        .rows_affected();
        let outcome = Some(outcome(paused == 0, true));
        let entry = AuditEntry { action: "stage.pause", subject: stage, outcome, ..AuditEntry::default() };
        entry.audit(&mut *db).await?;
    }
    list(db, stages).await
}

/// Resumes stages. With `all`, only paused stages are audited.
pub(super) async fn resume(db: &mut PgConnection, stages: &[&str], all: bool) -> anyhow::Result<CommandOutput> {
    for stage in stages {
        let resumed =
            sqlx::query!("delete from stage_pauses where stage = $1", stage).execute(&mut *db).await?.rows_affected();
        if all && resumed == 0 {
            continue;
        }
        let outcome = Some(outcome(resumed == 1, false));
        let entry = AuditEntry { action: "stage.resume", subject: stage, outcome, ..AuditEntry::default() };
        entry.audit(&mut *db).await?;
    }
    list(db, stages).await
}

/// The switches of these stages.
async fn list(db: &mut PgConnection, stages: &[&str]) -> anyhow::Result<CommandOutput> {
    let query = sqlx::query_scalar!(
        r#"select to_jsonb(r) - 'rank' as "record!" from (
               select w.stage, w.rank, p.stage is not null as paused, l.held_at is not null and w.stage = any ($2) as held,
                      p.paused_at as since, p.actor as by, p.reason
               from unnest($1::text[]) with ordinality as w (stage, rank)
               cross join ledger l
               left join stage_pauses p on p.stage = w.stage) r
           order by rank"#,
        stages as _,
        &runtime::pause_switches::OUTBOUND as _,
    );
    list_records(db, query, &["stage", "paused", "held", "since", "by", "reason"]).await
}
