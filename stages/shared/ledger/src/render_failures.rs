//! Records render failures: the send fails with its reason, and the other recipients are not affected.

use std::collections::BTreeMap;

use runner::StageError;
use runtime::Counter;
use schemas::{Cleared, SendId, SendState};
use sqlx::PgPool;
use uuid::Uuid;

use crate::{
    endings::{Ending, end_sends},
    hours::BatchKey,
};

/// A send that could not be rendered.
#[derive(Debug, Clone, Copy)]
pub struct RenderFailure {
    /// Index of its batch among the inputs.
    pub input: usize,
    /// The send.
    pub send_id: SendId,
    /// The contact that it was rendered for.
    pub contact_id: Uuid,
    /// The code of the failure.
    pub code: &'static str,
}

/// Records failures. A send that is no longer queued or deferred is left as it is, so a repeat changes nothing; mail in doubt stays
/// unknown. A send that is to another contact by now is left as it is, too: a crash of Postgres may have taken back the contact that the
/// message names, and its request was resolved again.
pub async fn record(pool: &PgPool, inputs: &[Cleared], failures: &[RenderFailure]) -> Result<(), StageError> {
    let Some(lane) = inputs.first().map(|batch| batch.lane) else { return Ok(()) };
    let ending = |failure: &RenderFailure| {
        let batch = inputs.get(failure.input)?;
        Some(Ending {
            batch: (batch.tenant_id, batch.batch_id),
            kind: batch.kind,
            send: Some(failure.send_id.0),
            contact: Some(failure.contact_id),
            to: SendState::Failed,
            reason: "render",
            code: Some(failure.code),
        })
    };
    let endings: Vec<Ending> = failures.iter().filter_map(ending).collect();
    let mut tx = pool.begin().await?;
    let ended = end_sends(&mut tx, &endings).await?;
    tx.commit().await?;
    for failed in ended.iter().filter(|ended| ended.to == SendState::Failed) {
        Counter::SendsTotal.add(failed.sends, [("lane", lane.as_str()), ("state", "failed")]);
        Counter::SendsFailedTotal.add(failed.sends, [("lane", lane.as_str()), ("class", "render")]);
    }
    let mut by_batch: BTreeMap<BatchKey, (u64, &str)> = BTreeMap::new();
    for failed in &ended {
        let code = failed.ending.code.unwrap_or_default();
        by_batch.entry(failed.ending.batch).or_insert((0, code)).0 += failed.sends;
    }
    for ((tenant_id, batch_id), (failed, code)) in by_batch {
        tracing::info!(%tenant_id, %batch_id, failed, code, "recipients could not be rendered");
    }
    Ok(())
}
