//! Signals after which a recipient gets no more mail.

use chrono::{DateTime, NaiveDate, Utc};
use schemas::{BounceClass, SendId, Signal, SignalKind};
use sqlx::PgConnection;
use uuid::Uuid;

use super::facts::is_complaint;

/// Suppresses the recipients of new opt-outs and complaints, and addresses that do not exist. A soft bounce, or one that is about us,
/// suppresses nobody here. An opt-out by a page of ours is committed with its fact ([`crate::opt_out`]); this holds for
/// what providers and reports tell. The contacts are locked first, in id order, as every suppression writer does; the batches are locked.
pub(super) async fn suppress(db: &mut PgConnection, new: &[&Signal]) -> sqlx::Result<()> {
    let leaving: Vec<&Signal> =
        new.iter().copied().filter(|signal| matches!(signal.kind, SignalKind::Unsubscribed { .. })).collect();
    let complaining: Vec<&Signal> = new.iter().copied().filter(|signal| is_complaint(&signal.kind)).collect();
    let gone: Vec<&Signal> = new
        .iter()
        .copied()
        .filter(|signal| matches!(signal.kind, SignalKind::Bounced { class: BounceClass::Hard, .. }))
        .collect();
    if leaving.is_empty() && complaining.is_empty() && gone.is_empty() {
        return Ok(());
    }
    let (tenants, ids, months) = keys(leaving.iter().chain(&complaining).chain(&gone).copied());
    sqlx::query_file!("queries/lock_recipients.sql", &tenants, &ids, &months).fetch_all(&mut *db).await?;
    if !leaving.is_empty() {
        let (tenants, ids, months) = keys(leaving.iter().copied());
        let at: Vec<DateTime<Utc>> = leaving.iter().map(|signal| signal.occurred_at).collect();
        sqlx::query_file!("queries/leave.sql", &tenants, &ids, &months, &at, &fresh_ids(&leaving))
            .execute(&mut *db)
            .await?;
    }
    if !complaining.is_empty() {
        let (tenants, ids, months) = keys(complaining.iter().copied());
        sqlx::query_file!("queries/complain.sql", &tenants, &ids, &months, &fresh_ids(&complaining))
            .execute(&mut *db)
            .await?;
    }
    if !gone.is_empty() {
        let (tenants, ids, months) = keys(gone.iter().copied());
        sqlx::query_file!("queries/bounce.sql", &tenants, &ids, &months, &fresh_ids(&gone)).execute(db).await?;
    }
    Ok(())
}

fn fresh_ids(signals: &[&Signal]) -> Vec<Uuid> {
    signals.iter().map(|_| schemas::new_id()).collect()
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
