//! `add_suppression`

use std::collections::HashMap;

use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    DueStep, Effect, MALFORMED, StepResult,
    contacts::{is_locked, lock},
};
use ledger::suppressions::{self, NewSuppression, Suppressed, SuppressionReason};
use schemas::action::{Action, AddSuppression};

fn asked<'a>(item: &DueStep<'a>) -> Option<&'a AddSuppression> {
    match &item.step.action {
        Some(Action::AddSuppression(add)) => Some(add),
        _ => None,
    }
}

/// Suppresses the contacts' addresses. The contacts are locked first, as every writer of suppressions does: the fence of delivery
/// locks the same rows.
pub(super) async fn add(db: &mut PgConnection, items: &[DueStep<'_>]) -> sqlx::Result<Vec<StepResult>> {
    let locked = lock(db, items).await?;
    let new = items.iter().filter(|item| is_locked(item, &locked)).filter_map(|item| {
        let add = asked(item)?;
        let (tenant, address) = (item.due.tenant_id, item.person.address.clone());
        let new = NewSuppression::new(tenant, address, SuppressionReason::Manual, "sequence");
        Some(NewSuppression { scope: add.scope, note: add.note.clone(), ..new })
    });
    let written: HashMap<(Uuid, String), Suppressed> = suppressions::suppress(db, new.collect())
        .await?
        .into_iter()
        .map(|row| ((row.tenant_id, row.address.clone()), row))
        .collect();
    let taken = |item: &DueStep<'_>| {
        if asked(item).is_none() {
            return MALFORMED;
        }
        let key = (item.due.tenant_id, item.person.address.clone());
        let Some(row) = written.get(&key).filter(|_| is_locked(item, &locked)) else { return StepResult::Later };
        let effect = Effect::changed(!row.already_existed, json!({ "suppression_id": row.id }));
        StepResult::Took(Effect { opted_out: true, ..effect })
    };
    Ok(items.iter().map(taken).collect())
}
