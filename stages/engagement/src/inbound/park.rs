//! Facts that wait for their send.

use std::collections::BTreeSet;

use schemas::Signal;
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Fate, Item};
use ledger::facts::SendKey;

/// Waits for a send that is not there.
pub(super) const UNKNOWN: &str = "unknown_send";
/// Is in the ledger, and waits as evidence for the outcome of the send.
pub(super) const UNDECIDED: &str = "undecided_send";

/// A fact that waits, and why.
pub(super) struct Waiting<'a> {
    pub item: &'a Item,
    pub reason: &'static str,
}

impl<'a> Waiting<'a> {
    /// Whether a fact waits after this fate.
    pub fn of((item, fate): (&'a Item, &Fate)) -> Option<Self> {
        match fate {
            Fate::Recorded => None,
            Fate::Unknown if item.is_reply() => None,
            Fate::Unknown => Some(Self { item, reason: UNKNOWN }),
            Fate::Undecided => Some(Self { item, reason: UNDECIDED }),
        }
    }

    fn signal(&self) -> Option<Value> {
        // The fact itself is in the ledger.
        let signal = self.item.signal.as_ref().filter(|_| self.reason == UNKNOWN)?;
        serde_json::to_value(signal).ok()
    }
}

/// Lets facts wait. Harmless to repeat: a fact waits once.
pub(super) async fn park(db: &mut PgConnection, waiting: &[Waiting<'_>]) -> sqlx::Result<()> {
    if waiting.is_empty() {
        return Ok(());
    }
    let items = || waiting.iter().map(|waits| waits.item);
    let tenants: Vec<Uuid> = items().map(|item| item.tenant_id).collect();
    let ids: Vec<Uuid> = items().map(|item| item.id).collect();
    let reasons: Vec<String> = waiting.iter().map(|waits| waits.reason.to_owned()).collect();
    let sends: Vec<Option<Uuid>> = items().map(|item| item.send_id).collect();
    let providers: Vec<Option<String>> = items().map(|item| item.provider.map(str::to_owned)).collect();
    let message_ids: Vec<Option<String>> = items().map(|item| item.message_id.clone()).collect();
    let signals: Vec<Option<Value>> = waiting.iter().map(Waiting::signal).collect();
    let at: Vec<chrono::DateTime<chrono::Utc>> = items().map(|item| item.at).collect();
    sqlx::query_file!(
        "queries/park.sql",
        &tenants,
        &ids,
        &reasons,
        &sends as &[Option<Uuid>],
        &providers as &[Option<String>],
        &message_ids as &[Option<String>],
        &signals as &[Option<Value>],
        &at
    )
    .execute(db)
    .await
    .map(drop)
}

/// Lets signals of links of ours wait, whose sends are unknown. Answers how many.
pub(crate) async fn park_unknown(
    db: &mut PgConnection,
    signals: &[Signal],
    unknown: &BTreeSet<SendKey>,
) -> sqlx::Result<u64> {
    let items: Vec<Item> = signals
        .iter()
        .filter(|signal| unknown.contains(&(signal.tenant_id, signal.send_id)))
        .map(|signal| Item {
            id: signal.signal_id,
            tenant_id: signal.tenant_id,
            send_id: Some(signal.send_id),
            provider: None,
            message_id: None,
            at: signal.occurred_at,
            signal: Some(signal.clone()),
        })
        .collect();
    let waiting: Vec<Waiting<'_>> = items.iter().map(|item| Waiting { item, reason: UNKNOWN }).collect();
    park(db, &waiting).await?;
    Ok(waiting.len() as u64)
}
