//! `update_field`, `update_lifecycle_stage`, and the lock that all changes of contacts take first.

use std::collections::{BTreeSet, HashSet};

use runtime::column;
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{DueStep, Effect, MALFORMED, StepResult};
use crate::due::Due;
use schemas::action::{Action, CONTACT_FIELDS};

/// Locks the items' contacts in the order of the ledger, and answers which it could lock. A contact that an import keeps locked for seconds
/// must not delay the others of the group.
pub(super) async fn lock(db: &mut PgConnection, items: &[DueStep<'_>]) -> sqlx::Result<HashSet<(Uuid, Uuid)>> {
    let rows = sqlx::query!(
        "select c.tenant_id, c.id
         from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
         join contacts c on c.tenant_id = w.tenant_id and c.id = w.id
         order by c.id
         for no key update of c skip locked",
        &column(items, |item| item.due.tenant_id),
        &column(items, |item| item.due.contact_id),
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.tenant_id, row.id)).collect())
}

pub(super) fn is_locked(item: &DueStep<'_>, locked: &HashSet<(Uuid, Uuid)>) -> bool {
    locked.contains(&(item.due.tenant_id, item.due.contact_id))
}

/// Holds the fields of the tenants whose own fields the items set, before contacts are locked, as every writer of their values does.
async fn hold_fields(db: &mut PgConnection, items: &[DueStep<'_>]) -> sqlx::Result<()> {
    let sets_own = |item: &&DueStep<'_>| change(item).is_some_and(|(field, _)| !is_column(field));
    let tenants: BTreeSet<Uuid> = items.iter().filter(sets_own).map(|item| item.due.tenant_id).collect();
    if tenants.is_empty() {
        return Ok(());
    }
    let tenants: Vec<Uuid> = tenants.into_iter().collect();
    sqlx::query!("select hold_fields(w.tenant_id) from unnest($1::uuid[]) as w (tenant_id)", &tenants)
        .execute(db)
        .await
        .map(drop)
}

/// What an item sets.
fn change<'a>(item: &DueStep<'a>) -> Option<(&'a str, Value)> {
    match &item.step.action {
        Some(Action::UpdateField(update)) => Some((&update.field, update.value.clone())),
        Some(Action::UpdateLifecycleStage(stage)) => Some(("lifecycle_stage", json!(stage.stage))),
        _ => None,
    }
}

/// Sets a field of each contact: one of its own columns, or a defined field, where null deletes the key.
pub(super) async fn update(db: &mut PgConnection, items: &[DueStep<'_>]) -> sqlx::Result<Vec<StepResult>> {
    hold_fields(&mut *db, items).await?;
    let locked = lock(db, items).await?;
    let ready = items.iter().filter(|item| is_locked(item, &locked));
    let ready: Vec<(&Due, (&str, Value))> = ready.filter_map(|item| Some((item.due, change(item)?))).collect();
    let rows = sqlx::query_file!(
        "queries/update_contacts.sql",
        &column(&ready, |(due, _)| due.tenant_id),
        &column(&ready, |(due, _)| due.contact_id),
        &column(&ready, |(_, (field, _))| *field) as &[&str],
        &column(&ready, |(_, (_, value))| value.clone()),
        &column(&ready, |(_, (field, _))| is_column(field)),
    )
    .fetch_all(db)
    .await?;
    let changed: HashSet<(Uuid, Uuid)> = rows.into_iter().map(|row| (row.tenant_id, row.id)).collect();
    let taken = |item: &DueStep<'_>| match change(item) {
        None => MALFORMED,
        Some(_) if !is_locked(item, &locked) => StepResult::Later,
        Some((field, _)) => StepResult::Took(Effect::changed(is_locked(item, &changed), json!({ "field": field }))),
    };
    Ok(items.iter().map(taken).collect())
}

fn is_column(field: &str) -> bool {
    field == "lifecycle_stage" || CONTACT_FIELDS.contains(&field)
}
