//! Sends in doubt that left by a provider's word: `unknown`, or about to be tried once more, becomes `sent`.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use runtime::column;
use schemas::{SendId, SendState};
use sqlx::PgConnection;
use uuid::Uuid;

use super::SendKey;
use crate::counters::{self, ResolvedSend};
use crate::hours::Hours;

/// Evidence that a provider accepted a mail: any event about the mail shows that the provider has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderEvidence {
    /// The tenant.
    pub tenant_id: Uuid,
    /// The send.
    pub send_id: Uuid,
    /// The time of the provider's event.
    pub at: DateTime<Utc>,
    /// Which provider.
    pub provider: String,
    /// The mail's id with the provider.
    pub message_id: Option<String>,
}

impl ProviderEvidence {
    pub(super) fn send(&self) -> SendKey {
        (self.tenant_id, self.send_id)
    }
}

/// Turns those of these sends whose outcome is unknown into `sent`, with their batches' counters and totals. The batches are locked.
pub(super) async fn resolve_unknown(
    db: &mut PgConnection,
    evidence: &[&ProviderEvidence],
    hours: &mut Hours,
) -> sqlx::Result<u64> {
    // One piece of evidence for each send, the earliest: the statement moves each row once.
    let mut earliest: BTreeMap<SendKey, &ProviderEvidence> = BTreeMap::new();
    for evidence in evidence {
        let known = earliest.entry(evidence.send()).or_insert(evidence);
        if evidence.at < known.at {
            *known = evidence;
        }
    }
    let (tenants, sends): (Vec<Uuid>, Vec<Uuid>) = earliest.keys().copied().unzip();
    let resolved = sqlx::query_file_as!(
        ResolvedSend,
        "queries/facts/resolve_unknown.sql",
        &tenants,
        &sends,
        &column(&sends, |send| SendId(*send).month()),
        &column(earliest.values(), |evidence| evidence.at),
        &column(earliest.values(), |evidence| evidence.provider.clone()),
        &column(earliest.values(), |evidence| evidence.message_id.clone()) as &[Option<String>]
    )
    .fetch_all(&mut *db)
    .await?;
    counters::count_resolved(db, &resolved, SendState::Sent, hours).await?;
    Ok(resolved.len() as u64)
}

/// Makes the evidence about these sends due: their outcomes have become unknown, and it would wait for its next turn. The batches are locked.
pub(crate) async fn make_evidence_due(db: &mut PgConnection, sends: &[SendKey]) -> sqlx::Result<()> {
    if sends.is_empty() {
        return Ok(());
    }
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = sends.iter().copied().unzip();
    sqlx::query_file!("queries/facts/make_evidence_due.sql", &tenants, &ids).execute(db).await.map(drop)
}
