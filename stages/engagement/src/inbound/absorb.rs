//! Facts to their sends, and into the ledger.

use std::collections::BTreeMap;

use schemas::{SendId, Signal};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Item, count_facts, months};
use ledger::facts::{self, Evidence};

/// What became of a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is in the ledger.
    Recorded,
    /// There is no such send, yet.
    Unknown,
    /// It is in the ledger. As evidence it may be needed again: the send is still in hand.
    Undecided,
}

/// What became of facts, one for each item.
#[derive(Debug)]
pub(super) struct Fates {
    pub each: Vec<Fate>,
}

impl Fates {
    /// Counts them, by provider. `recorded` is the word for those that are in the ledger.
    pub fn count(&self, recorded: &'static str, items: &[Item]) {
        let mut counts: BTreeMap<(&'static str, &'static str), u64> = BTreeMap::new();
        for (item, fate) in items.iter().zip(&self.each) {
            let outcome = match fate {
                // Who answers a mail has it: what is not there now was never ours.
                Fate::Unknown if item.is_reply() => "ignored",
                Fate::Unknown => "parked",
                Fate::Recorded | Fate::Undecided => recorded,
            };
            *counts.entry((item.provider.unwrap_or("link"), outcome)).or_default() += 1;
        }
        for ((provider, outcome), count) in counts {
            count_facts(provider, outcome, count);
        }
    }
}

/// Finds the sends of these facts and records them. Takes effect when the caller commits.
pub(super) async fn absorb(db: &mut PgConnection, items: &[Item], shard: i16) -> sqlx::Result<Fates> {
    if items.is_empty() {
        return Ok(Fates { each: Vec::new() });
    }
    let found = find(db, items).await?;
    let mut signals: Vec<Signal> = Vec::new();
    let mut evidence: Vec<Evidence> = Vec::new();
    for (item, send) in items.iter().zip(&found) {
        let Some(send_id) = *send else { continue };
        signals.extend(item.signal.clone().map(|signal| Signal { send_id, ..signal }));
        evidence.extend(item.carrier().map(|provider| Evidence {
            tenant_id: item.tenant_id,
            send_id,
            at: item.at,
            provider: provider.to_owned(),
            message_id: item.message_id.clone(),
        }));
    }
    let recorded = facts::record(db, &signals, &evidence, shard).await?;
    let fate = |(item, send): (&Item, &Option<Uuid>)| match send.map(|send| (item.tenant_id, send)) {
        None => Fate::Unknown,
        Some(send) if recorded.unknown.contains(&send) => Fate::Unknown,
        Some(send) if recorded.undecided.contains(&send) && item.carrier().is_some() => Fate::Undecided,
        Some(_) => Fate::Recorded,
    };
    Ok(Fates { each: items.iter().zip(&found).map(fate).collect() })
}

/// The send of each fact: the one it names, if it is this tenant's and went by this provider; else the one the provider's id belongs
/// to.
async fn find(db: &mut PgConnection, items: &[Item]) -> sqlx::Result<Vec<Option<Uuid>>> {
    let places: Vec<i32> = (0..items.len()).filter_map(|place| i32::try_from(place).ok()).collect();
    let tenants: Vec<Uuid> = items.iter().map(|item| item.tenant_id).collect();
    // An answer to a mail that is named may come by anybody; the id the mail has with a provider is known to that one only.
    let asked = |item: &Item| if item.send_id.is_some() { item.carrier() } else { item.provider };
    let providers: Vec<Option<String>> = items.iter().map(|item| asked(item).map(str::to_owned)).collect();
    let sends: Vec<Option<Uuid>> = items.iter().map(|item| item.send_id).collect();
    let ids: Vec<Option<String>> = items.iter().map(|item| item.message_id.clone()).collect();
    let rows = sqlx::query_file!(
        "queries/find_sends.sql",
        &places,
        &tenants,
        &providers as &[Option<String>],
        &sends as &[Option<Uuid>],
        &months(&sends) as &[Option<chrono::NaiveDate>],
        &ids as &[Option<String>]
    )
    .fetch_all(db)
    .await?;
    let mut found = vec![None; items.len()];
    for row in rows {
        if let Some(slot) = usize::try_from(row.place).ok().and_then(|place| found.get_mut(place)) {
            // A send's id says which month it is of: one that cannot be a send's is none.
            *slot = row.send_id.filter(|send| SendId(*send).0.get_version_num() == 7);
        }
    }
    Ok(found)
}
