//! Suppressions that follow from signals.

use std::collections::HashMap;

use schemas::{BounceClass, Signal, SignalKind};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{SendKey, columns, each::is_complaint, send_of};
use crate::{
    opt_out,
    people::{self, LockedContact, Person},
    suppressions::{self, NewSuppression, SuppressionReason},
};

/// The suppression that follows from a fact: its reason and source. A soft bounce, or a block of the sender, suppresses no address here.
pub(crate) fn suppression_of(kind: &SignalKind) -> Option<(SuppressionReason, &'static str)> {
    match kind {
        SignalKind::Unsubscribed { .. } => Some((SuppressionReason::Unsubscribe, "recipient")),
        SignalKind::Bounced { class: BounceClass::Hard, .. } => Some((SuppressionReason::HardBounce, "provider")),
        kind => is_complaint(kind).then_some((SuppressionReason::Complaint, "recipient")),
    }
}

/// Suppresses the recipients of new facts that ask for it. An opt-out on the engine's own page is committed with its fact
/// ([`crate::opt_out`]); this covers opt-outs that providers and reports bring. The contacts are locked first, in id order, as every
/// suppression writer does; the batches are locked.
pub(super) async fn suppress(db: &mut PgConnection, new: &[&Signal]) -> sqlx::Result<()> {
    let new = new.iter().filter_map(|signal| Some((*signal, suppression_of(&signal.kind)?)));
    let new: Vec<(&Signal, (SuppressionReason, &'static str))> = new.collect();
    if new.is_empty() {
        return Ok(());
    }
    let people = lock_recipients(&mut *db, new.iter().map(|(signal, _)| send_of(signal)).collect()).await?;
    let (mut left, mut suppressed): (Vec<&LockedContact>, Vec<NewSuppression>) = (Vec::new(), Vec::new());
    for (signal, (reason, source)) in new {
        let Some(person) = people.get(&send_of(signal)) else { continue };
        if matches!(signal.kind, SignalKind::Unsubscribed { .. }) {
            // A recipient that has opted in again since stays; consent that the tenant states does not count.
            if person.has_opted_in_since(signal.occurred_at) {
                continue;
            }
            left.extend(person.leaving());
        }
        let new = NewSuppression::new(signal.tenant_id, person.contact.address.clone(), reason, source);
        suppressed.push(new.because_of(signal.send_id));
    }
    opt_out::mark_unsubscribed(&mut *db, &left).await?;
    suppressions::suppress(db, suppressed).await.map(drop)
}

/// Locks the recipients of these sends; answers them by send. One that is erased is left out.
async fn lock_recipients(db: &mut PgConnection, sends: Vec<SendKey>) -> sqlx::Result<HashMap<SendKey, Person>> {
    let (tenants, ids, months) = columns(sends.iter());
    let rows = sqlx::query_file!("queries/facts/recipients.sql", &tenants, &ids, &months).fetch_all(&mut *db).await?;
    let contacts: Vec<(Uuid, Uuid)> = rows.iter().map(|row| (row.tenant_id, row.contact_id)).collect();
    let people = people::lock_people(db, &contacts).await?;
    let person = |(tenant, send, contact)| Some(((tenant, send), people.get(&(tenant, contact))?.clone()));
    Ok(rows.into_iter().filter_map(|row| person((row.tenant_id, row.send_id, row.contact_id))).collect())
}
