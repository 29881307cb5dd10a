//! Suppressions that follow from signals.

use std::collections::HashMap;

use chrono::{DateTime, NaiveDate, Utc};
use schemas::{BounceClass, SendId, Signal, SignalKind};
use sqlx::PgConnection;
use uuid::Uuid;

use super::each::is_complaint;
use crate::suppressions::{self, NewSuppression, SuppressionReason};

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
    let new: Vec<&Signal> = new.iter().copied().filter(|signal| suppression_of(&signal.kind).is_some()).collect();
    if new.is_empty() {
        return Ok(());
    }
    let (tenants, ids, months) = keys(new.iter().copied());
    let rows =
        sqlx::query_file!("queries/facts/lock_recipients.sql", &tenants, &ids, &months).fetch_all(&mut *db).await?;
    let addresses: HashMap<(Uuid, Uuid), String> =
        rows.into_iter().map(|row| ((row.tenant_id, row.send_id), row.address)).collect();
    let (leaving, others): (Vec<&Signal>, Vec<&Signal>) =
        new.into_iter().partition(|signal| matches!(signal.kind, SignalKind::Unsubscribed { .. }));
    let mut new: Vec<NewSuppression> = Vec::new();
    if !leaving.is_empty() {
        let (tenants, ids, months) = keys(leaving.iter().copied());
        let at: Vec<DateTime<Utc>> = leaving.iter().map(|signal| signal.occurred_at).collect();
        let left =
            sqlx::query_file!("queries/facts/opt_out.sql", &tenants, &ids, &months, &at).fetch_all(&mut *db).await?;
        new.extend(left.into_iter().map(|row| {
            let new = NewSuppression::new(row.tenant_id, row.address, SuppressionReason::Unsubscribe, "recipient");
            new.because_of(row.send_id)
        }));
    }
    new.extend(others.into_iter().filter_map(|signal| {
        let (reason, source) = suppression_of(&signal.kind)?;
        let address = addresses.get(&(signal.tenant_id, signal.send_id))?.clone();
        Some(NewSuppression::new(signal.tenant_id, address, reason, source).because_of(signal.send_id))
    }));
    suppressions::suppress(db, new).await.map(drop)
}

fn keys<'a>(signals: impl Iterator<Item = &'a Signal>) -> (Vec<Uuid>, Vec<Uuid>, Vec<NaiveDate>) {
    let mut keys = (Vec::new(), Vec::new(), Vec::new());
    for signal in signals {
        keys.0.push(signal.tenant_id);
        keys.1.push(signal.send_id);
        keys.2.push(SendId(signal.send_id).month());
    }
    keys
}
