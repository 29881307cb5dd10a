//! Decides unknown sends by an operator's evidence. They become `sent` or `failed`, never `queued`: a mail that may have left is not sent
//! again.

use std::collections::BTreeSet;

use runtime::{column, plans::PreparedPool};
use schemas::{SendId, SendState};
use serde_json::json;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::{
    counters::{self, ResolvedSend},
    hours::{BatchKey, Hours, batch_of},
};

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
    let batches: BTreeSet<BatchKey> = sends.iter().copied().map(batch_of).collect();
    counters::lock_batches(&mut *db, &batches.into_iter().collect::<Vec<_>>()).await?;
    let reason = (decision.outcome == OperatorOutcome::Failed).then_some(IN_DOUBT);
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = sends.iter().copied().unzip();
    let decided = sqlx::query_file_as!(
        ResolvedSend,
        "queries/operator/decide.sql",
        &tenants,
        &ids,
        &column(&ids, |id| SendId(*id).month()),
        decision.outcome.as_str(),
        decision.from as &[&str],
        reason,
        json!({"evidence": decision.evidence, "reason": reason}),
    )
    .fetch_all(&mut *db)
    .await?;
    let to = match decision.outcome {
        OperatorOutcome::Sent => SendState::Sent,
        OperatorOutcome::Failed => SendState::Failed,
    };
    let mut hours = Hours::default();
    counters::count_resolved(&mut *db, &decided, to, &mut hours).await?;
    hours.write(db, 0).await?;
    Ok(decided.len() as u64)
}
