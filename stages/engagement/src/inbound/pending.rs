//! Pending facts: facts that wait for their send.

use std::collections::BTreeSet;

use chrono::NaiveDate;
use runtime::column;
use schemas::{SendId, Signal};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{FactOutcome, IncomingFact};
use ledger::facts::SendKey;

/// The send is unknown.
pub(super) const UNKNOWN: &str = "unknown_send";
/// The fact is in the ledger, and waits as evidence for the outcome of its send.
pub(super) const UNDECIDED: &str = "undecided_send";

/// A fact that waits, with the reason.
pub(super) struct PendingFact<'a> {
    pub item: &'a IncomingFact,
    pub reason: &'static str,
}

impl<'a> PendingFact<'a> {
    /// The pending fact, if this outcome makes the fact wait.
    pub fn of((item, outcome): (&'a IncomingFact, &FactOutcome)) -> Option<Self> {
        match outcome {
            FactOutcome::Recorded => None,
            FactOutcome::Unknown => item.may_wait().then_some(Self { item, reason: UNKNOWN }),
            FactOutcome::Undecided => Some(Self { item, reason: UNDECIDED }),
        }
    }

    fn signal(&self) -> Option<Value> {
        // The fact itself is in the ledger.
        let signal = self.item.signal.as_ref().filter(|_| self.reason == UNKNOWN)?;
        serde_json::to_value(signal).ok()
    }
}

/// Adds pending facts. Harmless to repeat: a fact is pending once.
pub(super) async fn add_pending(db: &mut PgConnection, waiting: &[PendingFact<'_>]) -> sqlx::Result<()> {
    if waiting.is_empty() {
        return Ok(());
    }
    sqlx::query_file!(
        "queries/add_pending.sql",
        &column(waiting, |waits| waits.item.tenant_id),
        &column(waiting, |waits| waits.item.id),
        &column(waiting, |waits| waits.reason.to_owned()),
        &column(waiting, |waits| waits.item.send_id) as &[Option<Uuid>],
        &column(waiting, |waits| waits.item.provider) as &[Option<&str>],
        &column(waiting, |waits| waits.item.message_id.as_deref()) as &[Option<&str>],
        &column(waiting, PendingFact::signal) as &[Option<Value>],
        &column(waiting, |waits| waits.item.at)
    )
    .execute(db)
    .await
    .map(drop)
}

/// Adds signals of tracking links whose sends are unknown as pending facts, unless the ledger does not keep their month any more: such a
/// send never comes. Answers how many.
pub(crate) async fn add_pending_signals(
    db: &mut PgConnection,
    signals: &[Signal],
    unknown: &BTreeSet<SendKey>,
) -> sqlx::Result<u64> {
    if unknown.is_empty() {
        return Ok(0);
    }
    let months: BTreeSet<NaiveDate> = unknown.iter().map(|(_, send)| SendId(*send).month()).collect();
    let dropped = ledger::dropped_months(&mut *db, &Vec::from_iter(months)).await?;
    let items: Vec<IncomingFact> = signals
        .iter()
        .filter(|signal| unknown.contains(&(signal.tenant_id, signal.send_id)))
        .filter(|signal| !dropped.contains(&SendId(signal.send_id).month()))
        .map(|signal| IncomingFact {
            id: signal.signal_id,
            tenant_id: signal.tenant_id,
            send_id: Some(signal.send_id),
            provider: None,
            message_id: None,
            at: signal.occurred_at,
            signal: Some(signal.clone()),
            recipients: Vec::new(),
        })
        .collect();
    let waiting: Vec<PendingFact<'_>> = items.iter().map(|item| PendingFact { item, reason: UNKNOWN }).collect();
    add_pending(db, &waiting).await?;
    Ok(waiting.len() as u64)
}
