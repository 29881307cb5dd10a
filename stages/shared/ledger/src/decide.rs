//! Decides unknown sends by an operator's evidence. They become `sent` or `failed`, never `queued`: a mail that may have left is not sent
//! again.

use runtime::plans::PreparedPool;
use std::collections::BTreeSet;

use runtime::column;
use schemas::SendId;
use serde_json::json;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

/// Sends decided in one transaction.
pub const AT_ONCE: usize = 500;
/// The reason of a send that an operator has decided as not sent. Sends with this reason are not tried again.
const IN_DOUBT: &str = "in_doubt";

schemas::named_enum! {
    /// An operator's decision about a send.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
    pub enum OperatorOutcome {
        /// It left: the recipient has it.
        Sent = "sent",
        /// It did not leave, and is given up: it is not sent again.
        Failed = "failed",
    }
}

/// A decision, the states it applies to, and its evidence.
#[derive(Debug, Clone, Copy)]
pub struct OperatorDecision<'a> {
    /// What happened.
    pub outcome: OperatorOutcome,
    /// Only those in these states.
    pub from: &'a [&'a str],
    /// The source of the evidence, such as `operator` or `relay_log`.
    pub evidence: &'a str,
}

/// Decides these sends; answers how many. Commits in chunks, so that an interruption leaves whole steps.
pub async fn decide(
    pool: &PgPool,
    sends: &[(Uuid, Uuid)],
    decision: OperatorDecision<'_>,
    mut progress: impl FnMut(usize),
) -> sqlx::Result<u64> {
    let (by_key, mut decided) = (PreparedPool::new(pool, 1), 0);
    for chunk in sends.chunks(AT_ONCE) {
        let mut tx = by_key.begin().await?;
        decided += decide_some(&mut tx, chunk, decision).await?;
        tx.commit().await?;
        progress(chunk.len());
    }
    Ok(decided)
}

async fn decide_some(
    db: &mut PgConnection,
    sends: &[(Uuid, Uuid)],
    decision: OperatorDecision<'_>,
) -> sqlx::Result<u64> {
    let sends: BTreeSet<(Uuid, Uuid)> = sends.iter().copied().collect();
    let batches: BTreeSet<(Uuid, Uuid)> = sends.iter().map(|(tenant, id)| (*tenant, SendId(*id).batch())).collect();
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = batches.into_iter().unzip();
    // Batches before sends, in their order: the lock order of the ledger.
    sqlx::query!(
        "select b.id
         from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
         cross join lateral (
             select b.id from batches b where b.tenant_id = w.tenant_id and b.id = w.id for no key update
         ) b",
        &tenants,
        &ids,
    )
    .fetch_all(&mut *db)
    .await?;
    let reason = (decision.outcome == OperatorOutcome::Failed).then_some(IN_DOUBT);
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = sends.iter().copied().unzip();
    let decided = sqlx::query_file!(
        "queries/operator/decide.sql",
        &tenants,
        &ids,
        &column(&ids, |id| SendId(*id).month()),
        &column(&ids, |id| SendId(*id).batch()),
        decision.outcome.as_str(),
        &column(decision.from, |state| (*state).to_owned()),
        reason,
        json!({"evidence": decision.evidence, "reason": reason}),
        0_i16,
    )
    .fetch_all(db)
    .await?;
    Ok(decided.len() as u64)
}
