//! Finds the sends of incoming facts and records the facts.

use runtime::column;
use schemas::{SendId, Signal};
use sqlx::PgConnection;
use uuid::Uuid;

use super::IncomingFact;
use ledger::facts::{self, ProviderEvidence};

/// The result of recording a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FactOutcome {
    /// It is in the ledger.
    Recorded,
    /// There is no such send, yet.
    Unknown,
    /// It is in the ledger, and kept as evidence: the outcome of the send is still open.
    Undecided,
}

/// Finds the sends of these facts and records them. Takes effect when the caller commits. Returns the result for each fact.
pub(super) async fn absorb(
    db: &mut PgConnection,
    items: &[IncomingFact],
    shard: i16,
) -> sqlx::Result<Vec<FactOutcome>> {
    if items.is_empty() {
        return Ok(Vec::new());
    }
    let found = find(db, items).await?;
    let mut signals: Vec<Signal> = Vec::new();
    let mut evidence: Vec<ProviderEvidence> = Vec::new();
    for (item, send) in items.iter().zip(&found) {
        let Some(send_id) = *send else { continue };
        signals.extend(item.signal.clone().map(|signal| Signal { send_id, ..signal }));
        evidence.extend(item.carrier().map(|provider| ProviderEvidence {
            tenant_id: item.tenant_id,
            send_id,
            at: item.at,
            provider: provider.to_owned(),
            message_id: item.message_id.clone(),
        }));
    }
    let recorded = facts::record(db, &signals, &evidence, shard).await?;
    let outcome = |(item, send): (&IncomingFact, &Option<Uuid>)| match send.map(|send| (item.tenant_id, send)) {
        None => FactOutcome::Unknown,
        Some(send) if recorded.unknown.contains(&send) => FactOutcome::Unknown,
        Some(send) if recorded.undecided.contains(&send) && item.carrier().is_some() => FactOutcome::Undecided,
        Some(_) => FactOutcome::Recorded,
    };
    Ok(items.iter().zip(&found).map(outcome).collect())
}

/// The send of each fact: the one it names, if it is this tenant's and was sent by this provider; else the one with the provider's message
/// id.
async fn find(db: &mut PgConnection, items: &[IncomingFact]) -> sqlx::Result<Vec<Option<Uuid>>> {
    // An answer that names its mail may come by any provider; a message id is known to its own provider only.
    let asked = |item: &IncomingFact| if item.send_id.is_some() { item.carrier() } else { item.provider };
    let found = sqlx::query_file_scalar!(
        "queries/find_sends.sql",
        &column(items, |item| item.tenant_id),
        &column(items, asked) as &[Option<&str>],
        &column(items, |item| item.send_id) as &[Option<Uuid>],
        &column(items, |item| item.send_id.map(|send| SendId(send).month())) as &[Option<chrono::NaiveDate>],
        &column(items, |item| item.message_id.as_deref()) as &[Option<&str>]
    )
    .fetch_all(db)
    .await?;
    // A send's id carries its time: an id of another version is no send's.
    Ok(found.into_iter().map(|send| send.filter(|send| send.get_version_num() == 7)).collect())
}
