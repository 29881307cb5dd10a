//! What was rendered for a priority send is kept until it is decided: a second attempt has the same bytes, whatever happened
//! to template, sender or contact meanwhile.

use std::collections::HashMap;

use runner::StageError;
use schemas::{RenderedRecipient, SkeletonId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::people::Owed;

/// One send as it was rendered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Rendition {
    pub(super) skeleton: SkeletonId,
    pub(super) sending_domain: String,
    pub(super) return_path_domain: String,
    pub(super) recipient: RenderedRecipient,
}

/// Those of these sends that were rendered before, by send.
pub(super) async fn kept(db: &mut PgConnection, sends: &[Owed]) -> Result<HashMap<Uuid, Rendition>, StageError> {
    let (tenants, ids) = keys(sends.iter());
    let rows = sqlx::query!(
        r#"select r.send_id, r.rendered as "rendered: sqlx::types::Json<Rendition>"
           from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, send_id)
           join renditions r on r.tenant_id = w.tenant_id and r.send_id = w.send_id"#,
        &tenants,
        &ids
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.send_id, row.rendered.0)).collect())
}

/// A skeleton that is used by one message alone.
#[derive(Debug)]
pub(super) struct OwnSkeleton {
    pub(super) tenant_id: Uuid,
    pub(super) id: SkeletonId,
    pub(super) body: Value,
}

/// Keeps what was rendered now, with the skeletons it alone uses. Where another worker was first, its rendition replaces ours.
///
/// Should a crash of Postgres take renditions back they are made again. Not so skeletons: delivery may have been told of them.
pub(super) async fn keep(
    db: &mut PgConnection,
    rendered: &mut [(Owed, Rendition)],
    skeletons: Vec<OwnSkeleton>,
) -> Result<(), StageError> {
    let (tenants, ids) = keys(rendered.iter().map(|(send, _)| send));
    let bodies =
        rendered.iter().map(|(_, rendition)| serde_json::to_value(rendition)).collect::<Result<Vec<_>, _>>()?;
    let waits_for_disk = if skeletons.is_empty() { "off" } else { "on" };
    let owners: Vec<Uuid> = skeletons.iter().map(|skeleton| skeleton.tenant_id).collect();
    let (names, texts): (Vec<String>, Vec<Value>) =
        skeletons.into_iter().map(|skeleton| (skeleton.id.0, skeleton.body)).unzip();
    let stored =
        sqlx::query_file!("queries/keep.sql", &tenants, &ids, &bodies, &owners, &names, &texts, waits_for_disk)
            .execute(&mut *db)
            .await?;
    if stored.rows_affected() == rendered.len() as u64 {
        return Ok(());
    }
    let sends: Vec<Owed> = rendered.iter().map(|(send, _)| *send).collect();
    let mut first = kept(db, &sends).await?;
    for (send, rendition) in rendered {
        if let Some(theirs) = first.remove(&send.send_id.0) {
            *rendition = theirs;
        }
    }
    Ok(())
}

fn keys<'a>(sends: impl Iterator<Item = &'a Owed>) -> (Vec<Uuid>, Vec<Uuid>) {
    sends.map(|send| (send.tenant_id, send.send_id.0)).unzip()
}

/// Forgets renditions nobody can need any more. Priority mail is decided within a day or two; this is well past it.
pub(crate) struct Forget {
    pool: PgPool,
}

impl Forget {
    pub(crate) fn new(pool: PgPool) -> Self {
        Self { pool }
    }
}

/// Renditions one run forgets at most. Twenty such runs a minute forget as fast as mail can be sent.
const FORGET_AT_ONCE: i64 = 10_000;

#[async_trait::async_trait]
impl runner::Sweep for Forget {
    fn name(&self) -> &'static str {
        "renditions"
    }

    fn interval(&self) -> std::time::Duration {
        std::time::Duration::from_secs(60)
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        // Served by renditions_by_age.
        let forgotten = sqlx::query!(
            "delete from renditions r using (
                 select tenant_id, send_id from renditions where created_at < now() - interval '4 days'
                 order by created_at limit $1 for update skip locked
             ) as old
             where r.tenant_id = old.tenant_id and r.send_id = old.send_id",
            FORGET_AT_ONCE
        )
        .execute(&self.pool)
        .await?
        .rows_affected();
        Ok(forgotten)
    }
}
