//! Provider events about mail of months that the ledger does not keep any more, or that name no mail: their sends are never found.

use std::collections::BTreeSet;

use chrono::NaiveDate;
use ledger::PastRecipient;
use runtime::{db::BEGIN_BRIEFLY, plans::PreparedPool};
use schemas::SendId;

use super::{IncomingFact, count_facts};

/// Suppresses the recipients of opt-outs, complaints and hard bounces about mail of dropped months, ignores what else is about such mail, and
/// answers the other facts. A hard bounce that names no mail suppresses contacts only. Each address has a transaction of its own, because a
/// group locks its contacts in order. A repetition changes nothing.
///
/// The tenant's own provider has signed the event, and its address counts for that tenant only.
pub(super) async fn apply(by_key: &PreparedPool, facts: Vec<IncomingFact>) -> sqlx::Result<Vec<IncomingFact>> {
    let months: BTreeSet<NaiveDate> = facts.iter().filter_map(named_month).collect();
    let mut dropped = Vec::new();
    if !months.is_empty() {
        let mut tx = by_key.begin().await?;
        dropped = ledger::dropped_months(&mut tx, &Vec::from_iter(months)).await?;
        tx.commit().await?;
    }
    let (past, facts): (Vec<_>, Vec<_>) = facts
        .into_iter()
        .partition(|fact| names_no_mail(fact) || named_month(fact).is_some_and(|month| dropped.contains(&month)));
    for fact in past {
        let recipient_of = if names_no_mail(&fact) { PastRecipient::ContactAt } else { PastRecipient::Address };
        let suppressing = fact.signal.filter(|signal| ledger::suppresses(&signal.kind) && !fact.recipients.is_empty());
        let Some(signal) = suppressing else {
            count_facts(fact.provider.unwrap_or("link"), "ignored", 1);
            continue;
        };
        for address in fact.recipients {
            let mut tx = by_key.begin_with(BEGIN_BRIEFLY).await?;
            let recipient = recipient_of(address);
            ledger::apply_to_past_recipient(&mut tx, fact.tenant_id, &recipient, &signal.kind, Some(fact.at)).await?;
            tx.commit().await?;
        }
        count_facts(fact.provider.unwrap_or("link"), "recorded", 1);
    }
    Ok(facts)
}

/// True for a fact about an address: a provider reports no other without an id.
fn names_no_mail(fact: &IncomingFact) -> bool {
    fact.send_id.is_none() && fact.message_id.is_none()
}

/// The month of the mail, for facts that name their send.
fn named_month(fact: &IncomingFact) -> Option<NaiveDate> {
    let send = fact.send_id.filter(|send| send.get_version_num() == 7)?;
    Some(SendId(send).month())
}
